"""Laws: seconds of kernels by class and size, with few figures a device.

A law is a function of arrays: it prices all kernels of one class at once, from their sizes, the
datasheet of the device and the figures of `profiles/hardware/*.toml`. A figure that a device lacks
is neutral (an efficiency is 1, a delay 0), so that a device without any laws is a plain roofline.
"""
