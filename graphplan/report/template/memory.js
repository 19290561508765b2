// Memory of every device over the stretch of time that the timeline shows, against its limit.

const LIMIT_SHARE = 0.8;

const memoryCurves = planData.memory.map((curve) => ({
  times: Float64Array.from(curve.times),
  bytes: Float64Array.from(curve.bytes),
}));

/** Bytes in use on a device at a time, null when the timeline has no curve. */
function memoryAt(device, time) {
  const curve = memoryCurves[device];
  if (!curve) return null;
  const i = findLast(curve.times, time);
  return i < 0 ? 0 : curve.bytes[i];
}

const memory = {
  canvas: document.getElementById("memory-canvas"),
  scroller: document.getElementById("memory-scroller"),
  timings: [],
  pointer: null,
  scale: "limit",

  layout() {
    const count = memoryCurves.length;
    document.getElementById("memory-section").hidden = count === 0;
    this.rowHeight = count <= 8 ? 54 : count <= 16 ? 40 : 28;
    this.height = Math.min(MAX_HEIGHT, AXIS + count * this.rowHeight + 2);
    this.scroller.style.height = `${this.height}px`;
    this.scroller.querySelector(".spacer").style.height = `${AXIS + count * this.rowHeight}px`;
    this.redraw();
  },

  get width() { return Math.max(50, this.scroller.clientWidth - GUTTER - 2); },

  draw() {
    const width = this.width;
    const context = prepareCanvas(this.canvas, width + GUTTER + 2, this.height);
    context.clearRect(0, 0, width + GUTTER + 2, this.height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / this.rowHeight));
    const last = Math.min(memoryCurves.length, Math.ceil((this.scroller.scrollTop + this.height) / this.rowHeight));
    for (let device = first; device < last; device += 1) {
      this.drawDevice(context, device, AXIS + device * this.rowHeight - this.scroller.scrollTop, width);
    }
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, width + GUTTER + 2, AXIS);
    drawAxis(context, width, AXIS, AXIS);
    if (this.pointer !== null && this.pointer >= GUTTER) {
      context.strokeStyle = colours.quiet;
      context.beginPath();
      context.moveTo(this.pointer + 0.5, AXIS);
      context.lineTo(this.pointer + 0.5, this.height);
      context.stroke();
    }
  },

  drawDevice(context, device, top, width) {
    const tall = this.rowHeight - 6;
    const limit = planData.limits[device] || 1;
    const faint = view.stage !== null && !planData.stages[view.stage].devices.includes(device);
    context.globalAlpha = faint ? 0.35 : 1;
    context.fillStyle = colours.row;
    context.fillRect(GUTTER, top, width, tall);
    const full = this.scale === "limit" ? limit : Math.max(1, ...planData.peaks.map((each) => each.bytes));
    const highest = drawCurve(context, memoryCurves[device], limit, full, top, tall, width);
    const line = Math.round(top + tall * (1 - (LIMIT_SHARE * limit) / full)) + 0.5;
    context.strokeStyle = highest > limit ? colours.bad : colours.quiet;
    context.lineWidth = 1;
    context.setLineDash([4, 4]);
    context.beginPath();
    context.moveTo(GUTTER, line);
    context.lineTo(GUTTER + width, line);
    if (line >= top) context.stroke();
    context.setLineDash([]);
    context.textAlign = "right";
    context.fillStyle = colours.text;
    const peak = planData.peaks[device] ? planData.peaks[device].bytes : 0;
    const middle = top + tall / 2;
    const twoLines = tall >= 32;
    context.fillText(`GPU ${device}`, GUTTER - 8, twoLines ? middle - 7 : middle);
    context.fillStyle = peak > limit ? colours.bad : colours.quiet;
    if (twoLines) context.fillText(`${formatBytes(peak)} ${Math.round((peak / limit) * 100)}%`, GUTTER - 8, middle + 7, GUTTER - 10);
    context.globalAlpha = 1;
  },
};

memory.redraw = drawOncePerFrame(() => memory.draw(), memory.timings);

/** Fill the area under a curve, the highest value of each pixel; returns the highest of all. */
function drawCurve(context, curve, limit, full, top, tall, width) {
  const scale = width / (view.end - view.start);
  const bottom = top + tall;
  const unit = (tall * LIMIT_SHARE) / full;
  let highest = 0;
  let i = Math.max(0, findLast(curve.times, view.start));
  const heights = (bytes) => Math.max(top, bottom - bytes * unit);
  context.beginPath();
  context.moveTo(GUTTER, bottom);
  while (i < curve.times.length && curve.times[i] < view.end) {
    const left = Math.max(0, (curve.times[i] - view.start) * scale);
    let most = curve.bytes[i];
    let next = i + 1;
    while (next < curve.times.length && (curve.times[next] - view.start) * scale < left + 1) {
      most = Math.max(most, curve.bytes[next]);
      next += 1;
    }
    const right = next < curve.times.length ? Math.min(width, (curve.times[next] - view.start) * scale) : width;
    context.lineTo(GUTTER + left, heights(most));
    context.lineTo(GUTTER + right, heights(most));
    highest = Math.max(highest, most);
    i = next;
  }
  context.lineTo(GUTTER + width, bottom);
  context.closePath();
  context.fillStyle = highest > limit ? colours.bad : colours.good;
  const alpha = context.globalAlpha;
  context.globalAlpha = alpha * 0.42;
  context.fill();
  context.globalAlpha = alpha;
  context.strokeStyle = context.fillStyle;
  context.lineWidth = 1;
  context.stroke();
  return highest;
}

function listenToMemory() {
  const { canvas, scroller } = memory;
  canvas.addEventListener("pointermove", (event) => {
    memory.pointer = event.offsetX;
    memory.redraw();
    const device = Math.floor((event.offsetY - AXIS + scroller.scrollTop) / memory.rowHeight);
    if (event.offsetX < GUTTER || event.offsetY < AXIS || device >= memoryCurves.length) { tooltip.hide(); return; }
    const time = view.start + ((event.offsetX - GUTTER) / memory.width) * (view.end - view.start);
    const [used, limit, peak] = [memoryAt(device, time), planData.limits[device], planData.peaks[device]];
    const lines = [["time", formatSeconds(time)], ["in use", formatBytes(used)], ["of the limit", `${formatShare(used / limit)} of ${formatBytes(limit)}`]];
    if (peak) lines.push(["peak", `${formatBytes(peak.bytes)} at ${formatSeconds(peak.at)}`]);
    if (peak) for (const [name, bytes] of peak.parts) lines.push([`  ${name}`, formatBytes(bytes)]);
    tooltip.show(event.clientX, event.clientY, `Memory of GPU ${device}`, lines);
  });
  canvas.addEventListener("pointerleave", () => { memory.pointer = null; memory.redraw(); tooltip.hide(); });
  document.getElementById("memory-scale").addEventListener("change", (event) => { memory.scale = event.target.value; memory.redraw(); });
  scroller.addEventListener("scroll", () => { memory.redraw(); tooltip.hide(); }, { passive: true });
}
