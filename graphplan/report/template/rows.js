// Rows of spans as typed arrays, and how one row is drawn.

const GUTTER = 84;

class SpanRow {
  constructor(packed, isChannel) {
    this.name = packed.name;
    this.isChannel = isChannel;
    this.start = Float64Array.from(packed.start);
    this.end = Float64Array.from(packed.end);
    this.kind = packed.kind;
    this.stage = Int32Array.from(packed.stage);
    this.source = packed.source;
    this.batch = Int32Array.from(packed.batch);
    this.critical = new Uint8Array(packed.start.length);
    for (const i of packed.critical) this.critical[i] = 1;
  }

  get length() { return this.start.length; }

  nameOf(i) {
    const sender = this.isBetween(i) ? `${this.source[i]}>` : "";
    return `${sender}${this.stage[i]}${this.kind[i]}${this.batch[i]}`;
  }

  /** Whether a span is a message between stages, not a task or a bucket of gradients. */
  isBetween(i) { return this.isChannel && this.kind[i] !== "R"; }

  /** The span at a time, or the nearest within `reach` seconds; -1 when there is none. */
  find(time, reach) {
    const i = findLast(this.start, time);
    if (i >= 0 && this.end[i] >= time) return i;
    if (i >= 0 && time - this.end[i] <= reach) return i;
    if (i + 1 < this.length && this.start[i + 1] - time <= reach) return i + 1;
    return -1;
  }
}

const deviceRows = planData.devices.map((packed) => new SpanRow(packed, false));
const channelRows = planData.channels.map((packed) => new SpanRow(packed, true));

/** The colour of a span under the chosen scheme. */
function colourOf(row, i, scheme) {
  if (scheme === "stage") return wheelColour(row.stage[i]);
  if (scheme === "batch") return wheelColour(row.batch[i]);
  const table = row.isChannel ? planData.transfer_colours : planData.kind_colours;
  return table[row.kind[i]] || planData.kind_colours.U;
}

/**
 * Draw the spans of a row. Spans narrower than a pixel are drawn as one block for each pixel, in the
 * colour of the first of them, so that the work is bounded by the width of the screen.
 */
function drawRow(context, row, top, height, width, state) {
  const scale = width / (view.end - view.start);
  const first = Math.max(0, findLast(row.end, view.start));
  const hovered = state.hover && state.hover.row === row ? state.hover.index : -1;
  let drawnTo = -1;
  for (let i = first; i < row.length && row.start[i] < view.end; i += 1) {
    const left = (row.start[i] - view.start) * scale;
    const right = (row.end[i] - view.start) * scale;
    if (right < 0 || (right < drawnTo && right - left < 1)) continue;
    const from = Math.max(left, 0, drawnTo);
    const gap = right - left > 4 ? 1 : 0;
    const wide = Math.max(Math.min(right, width) - from - gap, 0.75);
    context.globalAlpha = isFaint(row, i, state) ? colours.dim : 1;
    context.fillStyle = colourOf(row, i, state.scheme);
    context.fillRect(GUTTER + from, top, wide, height);
    if (wide > 16 && height >= 11) drawLabel(context, row, i, GUTTER + from, top, wide, height, state);
    if (i === hovered) outline(context, GUTTER + from, top, wide, height);
    drawnTo = right - left < 1 ? Math.ceil(right) : right;
  }
  context.globalAlpha = 1;
}

/** Whether a span steps back because something else is chosen or pointed at. */
function isFaint(row, i, state) {
  if (state.critical && !row.critical[i]) return true;
  if (view.stage !== null) return row.stage[i] !== view.stage && (!row.isChannel || row.source[i] !== view.stage);
  if (state.hover && state.hover.batch !== null && !state.critical) return row.batch[i] !== state.hover.batch;
  return false;
}

function drawLabel(context, row, i, left, top, wide, height, state) {
  const name = row.nameOf(i);
  const text = wide > 7 * name.length + 8 ? name : String(row.batch[i]);
  if (wide < 7 * text.length + 4) return;
  context.fillStyle = row.isChannel && state.scheme === "kind" ? "#10202f" : "#ffffff";
  context.fillText(text, left + wide / 2, top + height / 2 + 0.5);
}

function outline(context, left, top, wide, height) {
  context.globalAlpha = 1;
  context.strokeStyle = colours.text;
  context.lineWidth = 2;
  context.strokeRect(left + 1, top + 1, Math.max(1, wide - 2), height - 2);
}

/** Grid lines and times at the top of a canvas. */
function drawAxis(context, width, height, axisHeight) {
  const scale = width / (view.end - view.start);
  context.strokeStyle = colours.grid;
  context.fillStyle = colours.quiet;
  context.lineWidth = 1;
  context.textAlign = "center";
  for (const tick of chooseTicks(view.start, view.end, Math.max(2, width / 110))) {
    const x = Math.round(GUTTER + (tick - view.start) * scale) + 0.5;
    context.beginPath();
    context.moveTo(x, axisHeight - 4);
    context.lineTo(x, height);
    context.stroke();
    if (axisHeight > 10) context.fillText(formatSeconds(tick, 4), Math.min(x, GUTTER + width - 24), axisHeight / 2 - 1);
  }
}
