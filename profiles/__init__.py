"""Data, no code: hardware and cluster descriptions that graphplan reads as package resources."""
