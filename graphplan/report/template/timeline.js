// The timeline: tasks of every device, transfers of every channel; zoom, move, hover, keyboard.

const AXIS = 22;
const MAX_HEIGHT = 600;

const timeline = {
  canvas: document.getElementById("timeline-canvas"),
  scroller: document.getElementById("timeline-scroller"),
  strip: document.getElementById("overview-canvas"),
  timings: [],
  rows: [],
  hover: null,
  scheme: "kind",
  critical: false,
  channels: channelRows.length > 0 && channelRows.length <= 12,

  layout() {
    this.rows = this.channels ? [...deviceRows, ...channelRows] : deviceRows;
    const count = this.rows.length;
    this.rowHeight = count <= 12 ? 26 : count <= 28 ? 20 : 14;
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
    const offset = AXIS - this.scroller.scrollTop;
    const gap = this.rowHeight > 16 ? 4 : 2;
    const visible = this.visibleRows();
    for (const r of visible) {
      context.fillStyle = colours.row;
      context.fillRect(GUTTER, offset + r * this.rowHeight, width, this.rowHeight - gap);
    }
    drawAxis(context, width, this.height, 0);
    for (const r of visible) {
      const top = offset + r * this.rowHeight;
      context.textAlign = "center";
      drawRow(context, this.rows[r], top, this.rowHeight - gap, width, this);
      context.textAlign = "right";
      context.fillStyle = this.hover && this.hover.row === this.rows[r] ? colours.text : colours.quiet;
      context.fillText(this.rows[r].name.slice(0, 16), GUTTER - 8, top + (this.rowHeight - gap) / 2, GUTTER - 10);
    }
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, width + GUTTER + 2, AXIS);
    drawAxis(context, width, AXIS, AXIS);
    this.drawStrip(width);
  },

  visibleRows() {
    const first = Math.floor(this.scroller.scrollTop / this.rowHeight);
    const last = Math.ceil((this.scroller.scrollTop + this.height - AXIS) / this.rowHeight);
    const found = [];
    for (let r = Math.max(0, first); r < Math.min(this.rows.length, last); r += 1) found.push(r);
    return found;
  },

  /** The whole step in small: how many devices compute, and which part is shown below. */
  drawStrip(width) {
    const height = 34;
    const context = prepareCanvas(this.strip, width + GUTTER + 2, height);
    context.clearRect(0, 0, width + GUTTER + 2, height);
    const shares = busyShares();
    context.fillStyle = colours.row;
    context.fillRect(GUTTER, 0, width, height);
    context.fillStyle = colours.accent;
    context.globalAlpha = 0.55;
    const wide = width / shares.length;
    context.beginPath();
    context.moveTo(GUTTER, height);
    for (let i = 0; i < shares.length; i += 1) {
      context.lineTo(GUTTER + i * wide, height - shares[i] * (height - 2));
      context.lineTo(GUTTER + (i + 1) * wide, height - shares[i] * (height - 2));
    }
    context.lineTo(GUTTER + width, height);
    context.fill();
    context.globalAlpha = 1;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillStyle = colours.quiet;
    context.fillText("busy GPUs", GUTTER - 8, height / 2);
    const left = GUTTER + (view.start / view.total) * width;
    const right = GUTTER + (view.end / view.total) * width;
    context.fillStyle = colours.panel;
    context.globalAlpha = 0.65;
    context.fillRect(GUTTER, 0, left - GUTTER, height);
    context.fillRect(right, 0, GUTTER + width - right, height);
    context.globalAlpha = 1;
    context.strokeStyle = colours.accent;
    context.lineWidth = 1.5;
    context.strokeRect(left + 0.75, 0.75, Math.max(2, right - left - 1.5), height - 1.5);
  },

  timeAt(x) {
    return view.start + ((x - GUTTER) / this.width) * (view.end - view.start);
  },

  /** The span under a point of the canvas, null when there is none. */
  spanAt(x, y) {
    const r = Math.floor((y - AXIS + this.scroller.scrollTop) / this.rowHeight);
    if (x < GUTTER || y < AXIS || r < 0 || r >= this.rows.length) return null;
    const row = this.rows[r];
    const reach = (2 / this.width) * (view.end - view.start);
    const index = row.find(this.timeAt(x), reach);
    return index < 0 ? null : { row, r, index, batch: row.batch[index] };
  },

  setHover(found) {
    const before = this.hover;
    this.hover = found;
    const same = before && found && before.row === found.row && before.index === found.index;
    if (!same && (before || found)) this.redraw();
  },

  zoomTo(found) {
    const { row, index } = found;
    const span = row.end[index] - row.start[index];
    view.show(row.start[index] - span * 2, row.end[index] + span * 2);
  },
};

timeline.redraw = drawOncePerFrame(() => timeline.draw(), timeline.timings);

const STRIP_CELLS = 400;
let stripShares = null;

/** Share of the devices that compute in each of many slices of the step; computed once. */
function busyShares() {
  if (stripShares) return stripShares;
  stripShares = new Float64Array(STRIP_CELLS);
  const scale = STRIP_CELLS / view.total;
  for (const row of deviceRows) {
    for (let i = 0; i < row.length; i += 1) {
      const [low, high] = [row.start[i] * scale, row.end[i] * scale];
      for (let c = Math.floor(low); c < Math.min(STRIP_CELLS, high); c += 1) {
        stripShares[c] += Math.max(0, Math.min(high, c + 1) - Math.max(low, c));
      }
    }
  }
  for (let c = 0; c < STRIP_CELLS; c += 1) stripShares[c] = Math.min(1, stripShares[c] / Math.max(1, deviceRows.length));
  return stripShares;
}

/** Lines of the tooltip of a span: what, when, and the bytes that it holds or sends. */
function describeSpan(found) {
  const { row, index } = found;
  const [start, end] = [row.start[index], row.end[index]];
  const kind = planData.kind_names[row.kind[index]] || row.kind[index];
  const lines = [["time", `${formatSeconds(start)} to ${formatSeconds(end)}`], ["takes", formatSeconds(end - start)]];
  if (row.isChannel && !row.isBetween(index)) {
    lines.push(["channel", row.name]);
    return [`${row.nameOf(index)}: a bucket of gradients of stage ${row.stage[index]}`, lines];
  }
  if (row.isChannel) {
    const [source, target] = [row.source[index], row.stage[index]];
    const price = planData.transfers.find((each) => each.src === source && each.dst === target);
    lines.push(["channel", row.name], ["bytes", price ? formatBytes(price.bytes) : "unknown"]);
    const what = row.kind[index] === "F" ? "activations" : "gradients";
    return [`${row.nameOf(index)}: ${what} of micro-batch ${row.batch[index]} from stage ${source} to stage ${target}`, lines];
  }
  const device = deviceRows.indexOf(row);
  const stage = planData.stages[row.stage[index]];
  lines.push(["device", row.name]);
  if (stage) lines.push(["stage", stage.title]);
  if (stage && row.kind[index] === "F") lines.push(["keeps", formatBytes(stage.saved_bytes)]);
  const used = memoryAt(device, (start + end) / 2);
  if (used !== null) lines.push(["device memory", `${formatBytes(used)} of ${formatBytes(planData.limits[device])}`]);
  if (row.critical[index]) lines.push(["critical path", "yes"]);
  const batch = "RU".includes(row.kind[index]) ? "" : ` of micro-batch ${row.batch[index]}`;
  return [`${row.nameOf(index)}: ${kind}${batch}, stage ${row.stage[index]}`, lines];
}

function listenToTimeline() {
  const { canvas, scroller } = timeline;
  let drag = null;
  let scrolledAt = -1e9;
  window.addEventListener("scroll", () => { scrolledAt = performance.now(); tooltip.hide(); }, { passive: true });

  canvas.addEventListener("wheel", (event) => {
    // A page scroll that passes over the timeline goes on; one that starts here zooms.
    if (performance.now() - scrolledAt < 250 || event.offsetX < GUTTER) return;
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!sideways && !event.shiftKey && event.deltaY > 0 && view.isWhole()) return;
    event.preventDefault();
    if (sideways || event.shiftKey) view.move((sideways ? event.deltaX : event.deltaY) / timeline.width);
    else view.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.0045), timeline.timeAt(event.offsetX));
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, start: view.start, end: view.end, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const shift = ((drag.x - event.clientX) / timeline.width) * (drag.end - drag.start);
      drag.moved = drag.moved || Math.abs(event.clientX - drag.x) > 3;
      if (drag.moved) { canvas.classList.add("dragging"); tooltip.hide(); view.show(drag.start + shift, drag.end + shift); }
      return;
    }
    const found = timeline.spanAt(event.offsetX, event.offsetY);
    timeline.setHover(found);
    if (found) tooltip.show(event.clientX, event.clientY, ...describeSpan(found)); else tooltip.hide();
  });
  const release = (event) => {
    if (drag && !drag.moved && event.type === "pointerup") {
      const found = timeline.spanAt(event.offsetX, event.offsetY);
      if (found || view.stage !== null) view.choose(found ? found.row.stage[found.index] : view.stage);
    }
    drag = null;
    canvas.classList.remove("dragging");
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { timeline.setHover(null); tooltip.hide(); });
  canvas.addEventListener("dblclick", (event) => {
    const found = timeline.spanAt(event.offsetX, event.offsetY);
    if (found) timeline.zoomTo(found);
  });
  canvas.addEventListener("blur", () => { timeline.setHover(null); tooltip.hide(); });
  canvas.addEventListener("keydown", pressKey);
  scroller.addEventListener("scroll", () => { timeline.redraw(); tooltip.hide(); }, { passive: true });

  const jump = (event) => {
    const at = ((event.offsetX - GUTTER) / timeline.width) * view.total;
    const span = view.end - view.start;
    view.show(at - span / 2, at + span / 2);
  };
  timeline.strip.addEventListener("pointerdown", (event) => { timeline.strip.setPointerCapture(event.pointerId); jump(event); });
  timeline.strip.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });
}

/** Keys: arrows walk, + and - zoom, shift and arrows move, 0 shows all, Enter chooses the stage. */
function pressKey(event) {
  const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const upright = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (event.key === "+" || event.key === "=") view.zoom(0.6);
  else if (event.key === "-") view.zoom(1 / 0.6);
  else if (event.key === "0" || event.key === "Home") view.fit();
  else if (event.key === "Escape") { view.stage = null; timeline.setHover(null); tooltip.hide(); view.changed(); }
  else if (event.key === "Enter" && timeline.hover) view.choose(timeline.hover.row.stage[timeline.hover.index]);
  else if (sideways && event.shiftKey) view.move(sideways * 0.2);
  else if (sideways || upright) walk(sideways || 0, upright || 0);
  else return;
  event.preventDefault();
}

/** Point at the next span of the row, or at the one nearest in time in the next row. */
function walk(sideways, upright) {
  const now = timeline.hover;
  let r = now ? now.r + upright : 0;
  r = Math.max(0, Math.min(timeline.rows.length - 1, r));
  const row = timeline.rows[r];
  if (!row || !row.length) return;
  let index = now ? Math.min(row.length - 1, Math.max(0, now.index + sideways)) : 0;
  if (now && upright) index = Math.max(0, findLast(row.start, now.row.start[now.index]));
  const [start, end] = [row.start[index], row.end[index]];
  if (start < view.start || end > view.end) {
    const half = Math.max(view.end - view.start, end - start) / 2;
    view.show((start + end) / 2 - half, (start + end) / 2 + half);
  }
  const top = r * timeline.rowHeight;
  const room = timeline.height - AXIS - timeline.rowHeight;
  if (top < timeline.scroller.scrollTop) timeline.scroller.scrollTop = top;
  if (top > timeline.scroller.scrollTop + room) timeline.scroller.scrollTop = top - room;
  const found = { row, r, index, batch: row.batch[index] };
  timeline.setHover(found);
  const [title, lines] = describeSpan(found);
  document.getElementById("announce").textContent = `${title}. ${lines.map((line) => line.join(" ")).join(", ")}`;
  const box = timeline.canvas.getBoundingClientRect();
  const x = GUTTER + (((start + end) / 2 - view.start) / (view.end - view.start)) * timeline.width;
  tooltip.show(box.left + x, box.top + AXIS + top - timeline.scroller.scrollTop + timeline.rowHeight, title, lines);
}
