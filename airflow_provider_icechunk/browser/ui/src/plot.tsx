// Images, lines and chunk maps on a canvas, sharp on every screen, in the colours of the page.
import React, { useEffect, useRef, useState } from "react";
import { type ChunkMap, floats, octets, type Picture, type PictureAxis } from "./api";
import { type Scale, table } from "./colour";
import { number, several, ticks } from "./format";
import { cut, style, useDark, useWidth, visible } from "./parts";

const BOTTOM = 44, TOP = 8, GAP = 16;
/** What is left and right of a picture: room for labels, less of it on narrow screens. */
const leftOf = (width: number): number => (width < 480 ? 60 : 84);
const barOf = (width: number): number => (width < 480 ? 62 : 96);

const HOW_TO = "Click a value, or go there with the arrow keys and press Enter, to see where it is stored. Drag to zoom in.";

export type Range = { low: number; high: number };
export type Picked = { row: number | null; column: number };
/** First and last position along each side, as the picture counts them. */
export type Area = { rows: [number, number]; columns: [number, number] };
type Share = [number, number];

const clamp = (value: number, most = 1): number => Math.max(0, Math.min(most, value));
const cells = (from: number, to: number, count: number): [number, number] => {
  const ends = [from, to].sort((a, b) => a - b).map((share) => Math.min(count - 1, Math.floor(share * count)));
  return [ends[0]!, ends[1]!];
};

/** A band that the mouse draws over a canvas; `done` gets two corners as shares of the frame. */
function useBand(frame: { left: number; top: number; width: number; height: number }, done?: (from: Share, to: Share) => void) {
  const from = useRef<Share | null>(null), drawn = useRef(false);
  const [to, setTo] = useState<Share | null>(null);
  const share = (event: React.PointerEvent): Share => {
    const box = event.currentTarget.getBoundingClientRect();
    return [clamp((event.clientX - box.left - frame.left) / frame.width), clamp((event.clientY - box.top - frame.top) / frame.height)];
  };
  const hold = {
    onPointerDown: (event: React.PointerEvent) => {
      drawn.current = false;
      if (!done || event.pointerType !== "mouse" || event.button !== 0) return;
      from.current = share(event);
      event.currentTarget.setPointerCapture(event.pointerId);
    },
    onPointerMove: (event: React.PointerEvent) => {
      if (!from.current) return;
      const now = share(event);
      if (to || Math.abs(now[0] - from.current[0]) * frame.width > 6 || Math.abs(now[1] - from.current[1]) * frame.height > 6) setTo(now);
    },
    onPointerUp: () => {
      if (from.current && to && done) { drawn.current = true; done(from.current, to); }
      from.current = null; setTo(null);
    },
  };
  const at = (one: Share) => [frame.left + one[0] * frame.width, frame.top + one[1] * frame.height] as const;
  const ends = from.current && to ? [at(from.current), at(to)] as const : null;
  const band = ends && <i className="band" style={{ left: Math.min(ends[0][0], ends[1][0]), top: Math.min(ends[0][1], ends[1][1]), width: Math.abs(ends[1][0] - ends[0][0]), height: Math.abs(ends[1][1] - ends[0][1]) }} />;
  return { hold, band, drawn };
}

function prepare(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d")!;
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, width, height);
  pen.font = "11.5px ui-sans-serif, system-ui, sans-serif";
  return pen;
}

export function rangeOf(picture: Picture, scale: Scale): Range {
  const low = picture.statistics.minimum ?? 0, high = picture.statistics.maximum ?? 1;
  if (scale === "diverging") { const far = Math.max(Math.abs(low), Math.abs(high)) || 1; return { low: -far, high: far }; }
  return low === high ? { low: low - 0.5, high: high + 0.5 } : { low, high };
}

const numeric = (text: string): number => (/^-?\d+(\.\d+)?(e[+-]?\d+)?$/i.test(text) ? Number(text) : NaN);

/** Whether rows are drawn upside down: coordinates that rise, such as latitudes from south to north, belong upwards. */
function rises(axis: PictureAxis): boolean {
  const first = numeric(axis.labels[0] ?? ""), last = numeric(axis.labels.at(-1) ?? "");
  return axis.units !== null && last > first;
}

/** 45 as 45°N where the axis says that it is a latitude. */
function tickText(value: number, units: string | null): string {
  const turned = /^degrees?_?(n|north|s|south)$/i.test(units ?? "") ? ["N", "S"] : /^degrees?_?(e|east|w|west)$/i.test(units ?? "") ? ["E", "W"] : null;
  if (!turned) return number(value);
  return value === 0 ? "0°" : `${number(Math.abs(value))}°${value > 0 ? turned[0] : turned[1]}`;
}

type Tick = { share: number; text: string };

/** Round numbers along a side of rising or falling coordinates, labels of some positions elsewhere. */
function ticksOf(axis: PictureAxis, most: number): Tick[] {
  const size = axis.labels.length, first = numeric(axis.labels[0] ?? ""), last = numeric(axis.labels.at(-1) ?? "");
  if (size > 2 && Number.isFinite(first) && Number.isFinite(last) && first !== last) {
    const values = axis.labels.map(numeric), up = last > first;
    if (values.every((one, at) => at === 0 || (up ? one > values[at - 1]! : one < values[at - 1]!))) {
      const steps = /^degrees?_?[a-z]*$/i.test(axis.units ?? "") ? [1, 2, 5, 10, 15, 30, 45, 60, 90, 180] : undefined;
      const whole = values.every(Number.isInteger);
      return ticks(Math.min(first, last), Math.max(first, last), most, steps).filter((value) => !whole || Number.isInteger(value)).map((value) => {
        const after = Math.max(1, values.findIndex((one) => (up ? one >= value : one <= value)));
        const low = values[after - 1]!, high = values[after]!;
        return { share: (after - 1 + (value - low) / (high - low) + 0.5) / size, text: tickText(value, axis.units) };
      });
    }
  }
  return labelled(axis, most).map((at) => ({ share: (at + 0.5) / size, text: visible(axis.labels[at]!) }));
}

/** Positions of a few labels along a side, evenly spread. */
function labelled(axis: PictureAxis, most: number): number[] {
  const count = Math.min(axis.labels.length, Math.max(2, most));
  if (axis.labels.length <= 1) return axis.labels.length ? [0] : [];
  return Array.from(new Set(Array.from({ length: count }, (_, at) => Math.round((at * (axis.labels.length - 1)) / (count - 1)))));
}

const axisTitle = (axis: PictureAxis): string => cut(visible(axis.units && !/^degrees?_?(n|e|north|east)$/i.test(axis.units) ? `${axis.name} (${axis.units})` : axis.name), 40);

export function Image({ picture, scale, range, onPick, onZoom, label }: {
  picture: Picture; scale: Scale; range: Range; onPick?: (picked: Picked) => void; onZoom?: (area: Area) => void; label: string;
}): React.ReactElement {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [frame, width] = useWidth();
  const [hover, setHover] = useState<string>("");
  const dark = useDark();
  const rows = picture.rows!, columns = picture.columns!;
  const left = leftOf(width), plotWidth = Math.max(40, width - left - barOf(width) - GAP);
  const wish = (plotWidth * rows.indices.length) / Math.max(1, columns.indices.length);
  const plotHeight = Math.max(150, Math.min(460, wish));
  const values = React.useMemo(() => floats(picture.values), [picture]);

  useEffect(() => {
    if (!canvas.current || width === 0) return;
    const high = rows.indices.length, wide = columns.indices.length;
    const pen = prepare(canvas.current, width, plotHeight + TOP + BOTTOM);
    const colours = table(scale), span = range.high - range.low || 1;
    const pixels = new ImageData(wide, high);
    for (let at = 0; at < high * wide; at++) {
      const value = values[at]!;
      if (!Number.isFinite(value)) continue;
      const level = Math.max(0, Math.min(255, Math.round(((value - range.low) / span) * 255))) * 3;
      pixels.data[at * 4] = colours[level]!; pixels.data[at * 4 + 1] = colours[level + 1]!;
      pixels.data[at * 4 + 2] = colours[level + 2]!; pixels.data[at * 4 + 3] = 255;
    }
    const sheet = new OffscreenCanvas(wide, high);
    sheet.getContext("2d")!.putImageData(pixels, 0, 0);
    const flip = rises(rows);
    pen.fillStyle = style("--missing");
    pen.fillRect(left, TOP, plotWidth, plotHeight);
    pen.imageSmoothingEnabled = false;
    pen.save();
    if (flip) { pen.translate(0, 2 * TOP + plotHeight); pen.scale(1, -1); }
    pen.drawImage(sheet, left, TOP, plotWidth, plotHeight);
    pen.restore();
    pen.strokeStyle = style("--line");
    pen.strokeRect(left + 0.5, TOP + 0.5, plotWidth - 1, plotHeight - 1);
    axes(pen, rows, columns, left, plotWidth, plotHeight);
    if (picture.statistics.count === 0) {
      pen.fillStyle = style("--soft"); pen.textAlign = "center"; pen.textBaseline = "middle";
      pen.fillText("All of these values are missing", left + plotWidth / 2, TOP + plotHeight / 2);
      return;
    }
    const x = left + plotWidth + GAP;
    for (let at = 0; at < plotHeight; at++) {
      const level = Math.round((1 - at / plotHeight) * 255) * 3;
      pen.fillStyle = `rgb(${colours[level]} ${colours[level + 1]} ${colours[level + 2]})`;
      pen.fillRect(x, TOP + at, 14, 1.5);
    }
    pen.fillStyle = style("--soft"); pen.textAlign = "left"; pen.textBaseline = "middle";
    for (const tick of ticks(range.low, range.high, 6)) {
      const y = TOP + plotHeight * (1 - (tick - range.low) / span);
      pen.fillRect(x + 14, y, 4, 1);
      pen.fillText(number(tick), x + 22, Math.min(TOP + plotHeight - 5, Math.max(TOP + 5, y)));
    }
    if (picture.units) pen.fillText(cut(visible(picture.units), 12), x, TOP + plotHeight + 14);
  }, [picture, width, scale, range.low, range.high, dark]);

  const where = (event: React.MouseEvent): Picked | null => {
    const box = canvas.current!.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left - left) / plotWidth) * columns.indices.length);
    const down = Math.floor(((event.clientY - box.top - TOP) / plotHeight) * rows.indices.length);
    const row = rises(rows) ? rows.indices.length - 1 - down : down;
    return row < 0 || column < 0 || row >= rows.indices.length || column >= columns.indices.length ? null : { row, column };
  };
  const about = (at: Picked | null): string => at === null ? "" :
    visible(`${rows.name} ${rows.labels[at.row!]} · ${columns.name} ${columns.labels[at.column]} · ${number(values[at.row! * columns.indices.length + at.column])} ${picture.units ?? ""}`);
  const [spot, setSpot] = useState<Picked | null>(null);
  const walk = (event: React.KeyboardEvent): void => {
    const up = rises(rows) ? 1 : -1, step = event.shiftKey ? 10 : 1;
    const way: Record<string, [number, number]> = { ArrowUp: [up * step, 0], ArrowDown: [-up * step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step] };
    const from = spot ?? { row: rows.indices.length >> 1, column: columns.indices.length >> 1 };
    if (event.key === "Enter" && onPick) { event.preventDefault(); onPick(from); return; }
    const move = way[event.key];
    if (!move) return;
    event.preventDefault();
    const to = { row: Math.max(0, Math.min(rows.indices.length - 1, from.row! + move[0])), column: Math.max(0, Math.min(columns.indices.length - 1, from.column + move[1])) };
    setSpot(to); setHover(about(to));
  };
  useEffect(() => setSpot(null), [rows.name, columns.name, rows.indices.length, columns.indices.length, rows.indices[0], columns.indices[0]]);
  const flip = rises(rows);
  const { hold, band, drawn } = useBand({ left, top: TOP, width: plotWidth, height: plotHeight }, onZoom && ((from, to) => {
    const down = (share: number): number => (flip ? 1 - share : share);
    onZoom({ rows: cells(down(from[1]), down(to[1]), rows.indices.length), columns: cells(from[0], to[0], columns.indices.length) });
  }));
  return (
    <div className="plot" ref={frame}>
      <canvas ref={canvas} role="img" aria-label={label} tabIndex={onPick ? 0 : undefined} onKeyDown={walk} onMouseMove={(event) => setHover(about(where(event)))} onMouseLeave={() => setHover("")} {...hold}
        onClick={(event) => { const at = drawn.current ? null : where(event); if (at && onPick) { setSpot(at); onPick(at); } }} />
      {band}
      {spot && onPick && <i className="spot" style={{ left: left + ((spot.column + 0.5) / columns.indices.length) * plotWidth, top: TOP + ((flip ? rows.indices.length - 0.5 - spot.row! : spot.row! + 0.5) / rows.indices.length) * plotHeight }} />}
      <div className="soft small" style={{ minHeight: 20 }} aria-live="polite">{hover || (onPick ? HOW_TO : "")}</div>
    </div>
  );
}

function axes(pen: CanvasRenderingContext2D, rows: PictureAxis | null, columns: PictureAxis, left: number, width: number, height: number): void {
  pen.fillStyle = style("--soft");
  pen.textBaseline = "top";
  const most = Math.max(2, Math.floor(width / (Number.isFinite(numeric(columns.labels[0] ?? "")) ? 80 : 130)));
  for (const tick of ticksOf(columns, most)) {
    const x = left + tick.share * width;
    const text = cut(tick.text, 19), half = pen.measureText(text).width / 2;
    pen.textAlign = "center";
    pen.fillRect(x, TOP + height, 1, 4);
    pen.fillText(text, Math.max(left + half - 24, Math.min(left + width - half + 12, x)), TOP + height + 7);
  }
  pen.textAlign = "center";
  pen.fillText(axisTitle(columns), left + width / 2, TOP + height + 25);
  if (!rows) return;
  pen.textAlign = "right"; pen.textBaseline = "middle";
  for (const tick of ticksOf(rows, Math.max(2, Math.floor(height / 45)))) {
    const y = TOP + (rises(rows) ? 1 - tick.share : tick.share) * height;
    pen.fillRect(left - 4, y, 4, 1);
    pen.fillText(cut(tick.text, 10), left - 7, Math.max(TOP + 5, Math.min(TOP + height - 5, y)));
  }
  pen.save();
  pen.translate(11, TOP + height / 2); pen.rotate(-Math.PI / 2); pen.textAlign = "center";
  pen.fillText(axisTitle(rows), 0, 0);
  pen.restore();
}

export function Line({ picture, onPick, onZoom, label }: { picture: Picture; onPick?: (picked: Picked) => void; onZoom?: (area: Area) => void; label: string }): React.ReactElement {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [frame, width] = useWidth();
  const [hover, setHover] = useState("");
  const dark = useDark();
  const values = React.useMemo(() => floats(picture.values), [picture]);
  const columns = picture.columns!;
  const height = 260, left = leftOf(width), plotWidth = Math.max(40, width - left - GAP);
  const range = rangeOf(picture, "sequential");
  useEffect(() => {
    if (!canvas.current || width === 0) return;
    const pen = prepare(canvas.current, width, height + TOP + BOTTOM);
    const y = (value: number) => TOP + height * (1 - (value - range.low) / (range.high - range.low)) * 0.94 + height * 0.03;
    pen.textAlign = "right"; pen.textBaseline = "middle";
    for (const tick of ticks(range.low, range.high, 5)) {
      pen.fillStyle = style("--line"); pen.fillRect(left, y(tick), plotWidth, 1);
      pen.fillStyle = style("--soft"); pen.fillText(number(tick), left - 8, y(tick));
    }
    axes(pen, null, columns, left, plotWidth, height);
    pen.strokeStyle = style("--brand"); pen.lineWidth = 1.8; pen.lineJoin = "round"; pen.beginPath();
    let drawing = false;
    values.forEach((value, at) => {
      if (!Number.isFinite(value)) { drawing = false; return; }
      const x = left + ((at + 0.5) / values.length) * plotWidth;
      if (drawing) pen.lineTo(x, y(value)); else pen.moveTo(x, y(value));
      drawing = true;
    });
    pen.stroke();
    if (values.length <= 80) {
      pen.fillStyle = style("--brand");
      values.forEach((value, at) => { if (Number.isFinite(value)) { pen.beginPath(); pen.arc(left + ((at + 0.5) / values.length) * plotWidth, y(value), 2.6, 0, 7); pen.fill(); } });
    }
  }, [picture, width, dark]);
  const where = (event: React.MouseEvent): number | null => {
    const at = Math.floor(((event.clientX - canvas.current!.getBoundingClientRect().left - left) / plotWidth) * values.length);
    return at < 0 || at >= values.length ? null : at;
  };
  const about = (at: number | null): string => at === null ? "" : visible(`${columns.name} ${columns.labels[at]} · ${number(values[at])} ${picture.units ?? ""}`);
  const [spot, setSpot] = useState<number | null>(null);
  const walk = (event: React.KeyboardEvent): void => {
    const from = spot ?? values.length >> 1, step = event.shiftKey ? 10 : 1;
    if (event.key === "Enter" && onPick) { event.preventDefault(); onPick({ row: null, column: from }); return; }
    const move = { ArrowLeft: -step, ArrowRight: step }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const to = Math.max(0, Math.min(values.length - 1, from + move));
    setSpot(to); setHover(about(to));
  };
  useEffect(() => setSpot(null), [columns.name, columns.indices.length, columns.indices[0]]);
  const { hold, band, drawn } = useBand({ left, top: TOP, width: plotWidth, height }, onZoom && ((from, to) => onZoom({ rows: [0, 0], columns: cells(from[0], to[0], values.length) })));
  return (
    <div className="plot" ref={frame}>
      <canvas ref={canvas} role="img" aria-label={label} tabIndex={onPick ? 0 : undefined} onKeyDown={walk} onMouseLeave={() => setHover("")} {...hold}
        onMouseMove={(event) => setHover(about(where(event)))}
        onClick={(event) => { const at = drawn.current ? null : where(event); if (at !== null && onPick) { setSpot(at); onPick({ row: null, column: at }); } }} />
      {band}
      {spot !== null && onPick && <i className="spot line" style={{ left: left + ((spot + 0.5) / values.length) * plotWidth, top: TOP, height }} />}
      <div className="soft small" style={{ minHeight: 20 }} aria-live="polite">{hover || (onPick ? HOW_TO : "")}</div>
    </div>
  );
}

export function Chunks({ map }: { map: ChunkMap }): React.ReactElement {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [frame, width] = useWidth();
  const [hover, setHover] = useState("");
  const dark = useDark();
  const turned = map.rows > map.columns * 2;
  const high = turned ? map.columns : map.rows, wide = turned ? map.rows : map.columns;
  const cell = Math.max(1, Math.min(26, Math.floor((width - 2) / Math.max(1, wide))));
  const tall = Math.max(2, Math.min(Math.max(cell, 14), Math.floor(260 / high)));
  const present = React.useMemo(() => octets(map.present), [map]), changed = React.useMemo(() => octets(map.changed), [map]);
  const at = (row: number, column: number) => (turned ? column * map.columns + row : row * map.columns + column);
  useEffect(() => {
    if (!canvas.current || width === 0) return;
    const pen = prepare(canvas.current, width, high * tall + 2);
    const gap = cell > 5 && tall > 5 ? 1.5 : 0;
    const colours = { missing: style("--missing"), present: style("--present"), written: style("--written") };
    for (let row = 0; row < high; row++) for (let column = 0; column < wide; column++) {
      const here = present[at(row, column)]!, new_ = changed[at(row, column)]!;
      const x = column * cell, y = row * tall, w = cell - gap, h = tall - gap;
      pen.globalAlpha = 1; pen.fillStyle = colours.missing; pen.fillRect(x, y, w, h);
      if (here) { pen.globalAlpha = 0.25 + 0.75 * (here / 255); pen.fillStyle = colours.present; pen.fillRect(x, y, w, h); }
      if (new_) { pen.globalAlpha = 0.35 + 0.65 * (new_ / 255); pen.fillStyle = here ? colours.written : style("--bad"); pen.fillRect(x, y, w, h); }
    }
    pen.globalAlpha = 1;
  }, [map, width, dark]);
  const names = (turned ? [map.column_axis, map.row_axis] : [map.row_axis, map.column_axis]).map((one) => one && visible(one));
  const sides = turned ? [map.grid[1], map.grid[0]] : map.grid;
  const label = `Chunk map of ${map.grid.join(" by ")} chunks: ${map.chunks} are there (${Math.round(map.coverage * 100)} %), ${map.chunks_changed} were written.`;
  return (
    <div className="stack" style={{ gap: 8 }}>
      <div ref={frame} className="plot">
        <canvas ref={canvas} role="img" aria-label={label} onMouseLeave={() => setHover("")} onMouseMove={(event) => {
          const box = canvas.current!.getBoundingClientRect();
          const column = Math.floor((event.clientX - box.left) / cell), row = Math.floor((event.clientY - box.top) / tall);
          if (row < 0 || column < 0 || row >= high || column >= wide) { setHover(""); return; }
          const here = present[at(row, column)]!, new_ = changed[at(row, column)]!;
          setHover(`${names[0] ? `${names[0]} chunk ${row}, ` : ""}${names[1] ? `${names[1]} chunk ${column}` : "chunk 0"}: ${here === 0 ? "missing" : here === 255 ? "there" : `${Math.round(here / 2.55)} % there`}${new_ ? ", written" : ""}`);
        }} />
      </div>
      <div className="legend">
        {map.against !== null && <span><i style={{ background: "var(--written)" }} />written here</span>}<span><i style={{ background: "var(--present)" }} />{map.against === null ? "there" : "there before"}</span>
        <span><i style={{ background: "var(--missing)" }} />missing</span><span className="grow" style={{ textAlign: "right" }}>{hover || [names[0] && `↓ ${names[0]}, ${several(sides[0] ?? 1, "chunk")}`, names[1] && `→ ${names[1]}, ${several(sides[1] ?? 1, "chunk")}`].filter(Boolean).join("   ")}</span>
      </div>
    </div>
  );
}
