"use strict";
// Numbers as people read them, and elements whose text is never parsed as HTML.

const planData = JSON.parse(document.getElementById("plan-data").textContent);

function significant(value, digits) {
  if (value === 0) return "0";
  const whole = Math.max(1, Math.floor(Math.log10(Math.abs(value))) + 1);
  const decimals = Math.min(3, Math.max(0, digits - whole));
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

function formatSeconds(seconds, digits = 4) {
  const size = Math.abs(seconds);
  if (size === 0) return "0 ms";
  if (size >= 10) return `${significant(seconds, digits)} s`;
  if (size >= 1e-3) return `${significant(seconds * 1e3, digits)} ms`;
  if (size >= 1e-6) return `${significant(seconds * 1e6, digits)} µs`;
  return `${significant(seconds * 1e9, digits)} ns`;
}

function formatBytes(bytes) {
  const units = ["B", "KB", "MB", "GB", "TB", "PB", "EB"];
  let power = 0;
  let value = bytes;
  while (Math.abs(value) >= 1023.95 && power < units.length - 1) { value /= 1024; power += 1; }
  return power === 0 ? `${Math.round(value)} B` : `${significant(value, 3)} ${units[power]}`;
}

function formatShare(share) {
  return `${(share * 100).toFixed(1)}%`;
}

function makeElement(tag, options = {}, children = []) {
  const element = document.createElement(tag);
  if (options.text !== undefined) element.textContent = options.text;
  if (options.className) element.className = options.className;
  for (const child of children) element.appendChild(child);
  return element;
}

/** Position of the last entry of a sorted array that is at most `value`, -1 when there is none. */
function findLast(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1; else high = middle;
  }
  return low - 1;
}

/** Round numbers between two times, at most `most` of them. */
function chooseTicks(start, end, most) {
  const least = (end - start) / Math.max(1, most);
  if (!(least > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least) || 10 * power;
  const ticks = [];
  for (let i = Math.ceil(start / step); i * step <= end; i += 1) ticks.push(i * step);
  return ticks;
}
