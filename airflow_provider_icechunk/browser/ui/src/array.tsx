import React, { useState } from "react";
import { type ArrayFacts, type Axis, type Cell, type ChunkMap, type Comparison, type Coverage, inPlace, type Picture, type PictureAxis, type Refs } from "./api";
import type { Scale } from "./colour";
import { count, number, several, shortId, size } from "./format";
import { Answered, Facts, Json, useAnswer, useCalm, visible } from "./parts";
import { type Area, Chunks, Image, Line, type Picked, rangeOf } from "./plot";
import { go, href, type Route } from "./route";

export function shapeText(axes: Axis[]): string { return axes.map((axis) => `${axis.name}: ${axis.length}`).join(", "); }

type View = { rows: number | null; columns: number | null; at: number[] };

function viewOf(facts: ArrayFacts, query: Record<string, string>): View {
  const ndim = facts.axes.length;
  const whole = (text: string | undefined, most: number): number | null => (text !== undefined && /^\d{1,9}$/.test(text) && Number(text) < most ? Number(text) : null);
  const given = (query.at ?? "").split(",");
  const at = facts.axes.map((axis, n) => whole(given[n], axis.length) ?? 0);
  if (ndim < 2 || facts.drawable !== "image") return { rows: null, columns: ndim ? (whole(query.columns, ndim) ?? ndim - 1) : null, at };
  const columns = whole(query.columns, ndim) ?? ndim - 1;
  const rows = whole(query.rows, ndim) ?? (columns === ndim - 1 ? ndim - 2 : ndim - 1);
  return { rows: rows === columns ? (columns + 1) % ndim : rows, columns, at };
}

/** Which two dimensions are drawn, and a slider for each other one. */
function Controls({ facts, view, change, fixed }: { facts: ArrayFacts; view: View; fixed?: Record<string, string>; change: (next: Partial<Record<"rows" | "columns" | "at", string>>) => void }): React.ReactElement {
  const others = facts.axes.map((axis, n) => ({ axis, n })).filter(({ n }) => n !== view.rows && n !== view.columns);
  const set = (n: number, value: number) => change({ at: view.at.map((one, other) => (other === n ? value : one)).join(",") });
  return (
    <div className="stack" style={{ gap: 10 }}>
      {facts.axes.length > 1 && (
        <div className="row">
          {view.rows !== null && <label>Rows <select value={view.rows} onChange={(event) => change({ rows: event.target.value, ...(Number(event.target.value) === view.columns ? { columns: String(view.rows) } : {}) })}>
            {facts.axes.map((axis, n) => <option key={n} value={n}>{visible(axis.name)}</option>)}</select></label>}
          <label>Columns <select value={view.columns ?? 0} onChange={(event) => change({ columns: event.target.value, ...(Number(event.target.value) === view.rows ? { rows: String(view.columns) } : {}) })}>
            {facts.axes.map((axis, n) => <option key={n} value={n}>{visible(axis.name)}</option>)}</select></label>
        </div>
      )}
      {others.length > 0 && <div className="sliders">{others.map(({ axis, n }) => (
        <div key={n}>
          <label style={{ width: "100%" }}><span style={{ whiteSpace: "nowrap" }}><b>{visible(axis.name)}</b> {visible(fixed?.[axis.name] ?? "")}{axis.units && !axis.units.includes(" since ") && ` ${visible(axis.units)}`} <span className="soft">({count(view.at[n]! + 1)} of {count(axis.length)})</span></span>
            <input type="range" min={0} max={axis.length - 1} value={view.at[n]} aria-label={`Position along ${axis.name}`} aria-valuetext={fixed?.[axis.name]} onChange={(event) => set(n, Number(event.target.value))} /></label>
        </div>))}</div>}
    </div>
  );
}

function Shown({ picture, axes }: { picture: Picture; axes: Axis[] }): React.ReactElement {
  const s = picture.statistics, shown = s.count + s.missing;
  const whole = axes.filter((axis) => axis.name === picture.rows?.name || axis.name === picture.columns?.name).reduce((all, axis) => all * axis.length, 1);
  return (
    <div className="row soft small" style={{ gap: "0 16px" }}>
      {picture.kind !== "table" && s.count > 0 && <><span>min <b>{number(s.minimum)}</b></span><span>max <b>{number(s.maximum)}</b></span><span>mean <b>{number(s.mean)}</b></span><span>deviation <b>{number(s.deviation)}</b></span></>}
      <span>{several(shown, "value")}{whole > shown && ` of ${count(whole)}`} shown{s.missing > 0 && `, ${count(s.missing)} missing`}</span>
      <span>{picture.sampled ? `thinned out: ${count(picture.chunks_read)} of ${count(picture.chunks_total)} chunks read` : `${several(picture.chunks_read, "chunk")} read`}</span>
    </div>
  );
}

/** Colours around zero where values lie on both sides of it, not where a few stick out. */
const crossesZero = (picture: Picture): boolean => {
  const low = picture.statistics.minimum ?? 0, high = picture.statistics.maximum ?? 0;
  return low < 0 && high > 0 && Math.min(-low, high) > 0.2 * Math.max(-low, high);
};

/** The part of an array in an area of its picture, as the address has it. */
function boxOf(picture: Picture, { rows, columns }: Area): string {
  const ends = (axis: PictureAxis | null, [first, last]: [number, number]): number[] =>
    axis === null ? [0, 1] : [axis.indices[first]!, axis.indices[last + 1] ?? axis.indices[last]! + 1];
  return [...ends(picture.rows, rows), ...ends(picture.columns, columns)].join(",");
}

export function PictureView({ picture, scale, onPick, onZoom }: { picture: Picture; scale: Scale; onPick?: (picked: Picked) => void; onZoom?: (area: Area) => void }): React.ReactElement {
  const label = `${picture.path}, ${picture.statistics.count} values from ${number(picture.statistics.minimum)} to ${number(picture.statistics.maximum)} ${picture.units ?? ""}`;
  if (picture.kind === "table") return (
    <div className="texts"><table><thead><tr><th>{visible(picture.columns?.name ?? "")}</th><th>value</th></tr></thead>
      <tbody>{picture.texts.map((text, at) => <tr key={at}><td className="mono">{visible(picture.columns?.labels[at] ?? "")}</td><td>{visible(text)}</td></tr>)}</tbody></table></div>);
  if (picture.kind === "value" || !picture.columns) return <div className="figures"><div><b>{picture.texts[0] ?? number(picture.statistics.mean)}</b></div></div>;
  if (!picture.rows) return <Line picture={picture} onPick={onPick} onZoom={onZoom} label={label} />;
  return <Image picture={picture} scale={scale} range={rangeOf(picture, scale)} onPick={onPick} onZoom={onZoom} label={label} />;
}

/** The stored size, and how much the chunks that are there were compressed. */
function storedText(logical: number, chunks: NonNullable<ArrayFacts["chunks"]>): string {
  const there = chunks.native + chunks.inline + chunks.virtual;
  const ratio = chunks.stored_bytes ? (logical * there) / (there + chunks.missing) / chunks.stored_bytes : 0;
  return `${size(chunks.stored_bytes)}${ratio >= 1.05 ? `, compressed ${ratio.toFixed(1)} : 1` : ""}`;
}

/** A share of everything; little is not nothing, and nearly all is not all. */
function percent(share: number): string {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${share < 1 ? Math.min(99.9, Math.round(share * 1000) / 10) : 100} %`;
}

export function ArrayView({ route }: { route: Route }): React.ReactElement {
  const { place, repository, query } = route;
  const version = query.version || "main", path = query.path || "/";
  const facts = useAnswer<ArrayFacts>(inPlace(place, "array"), { repository, version, path });
  return <Answered asked={facts}>{(found) => <ArrayPage key={found.path} route={route} facts={found} version={version} />}</Answered>;
}

function ArrayPage({ route, facts, version }: { route: Route; facts: ArrayFacts; version: string }): React.ReactElement {
  const { place, repository, query } = route;
  const view = viewOf(facts, query);
  const [scaleName, setScale] = useState<Scale | "auto">("auto");
  const [cellAt, setCell] = useState<number[] | null>(null);
  const change = (next: Record<string, string | undefined>) => go(href(place, repository, "array", { ...query, ...next }), true);
  const turn = (next: Record<string, string>) => change("at" in next ? next : { ...next, box: undefined });
  const asked = useAnswer<Picture>(facts.drawable === "none" ? null : inPlace(place, "picture"), JSON.parse(useCalm(JSON.stringify(
    { repository, version, path: facts.path, rows: view.rows, columns: view.columns, at: view.at.join(","), box: query.box, height: 360, width: 720 }), 120)));
  const map = useAnswer<ChunkMap>(inPlace(place, "chunks"), { repository, version, path: facts.path, against: query.against });
  const chunks = facts.chunks;
  return (
    <div className="stack">
      <div className="row">
        <h2 className="grow" style={{ fontSize: 18 }}>{visible(facts.path)}</h2>
        <a href={href(place, repository, "snapshot", { version })}>version {version.length > 16 ? shortId(version) : version}</a>
        <a className="button" href={href(place, repository, "history", { path: facts.path })}>History of this array</a>
        <a className="button" href={href(place, repository, "compare", { ...query, path: facts.path, right: version, left: `${version}~1` })}>Compare versions</a>
      </div>
      <div className="two">
        <div className="stack">
          <section className="card stack" aria-label="Picture">
            <div className="row"><h2 className="grow">{visible(String(facts.attributes.long_name ?? "Values"))}{facts.attributes.units ? <span className="soft"> · {visible(String(facts.attributes.units))}</span> : null}{facts.data_type.startsWith("complex") && <span className="soft"> · magnitude</span>}</h2>
              {query.box && <button onClick={() => change({ box: undefined })}>Whole array</button>}
              {facts.drawable === "image" && <label>Colours <select value={scaleName} onChange={(event) => setScale(event.target.value as Scale | "auto")}><option value="auto">automatic</option><option value="sequential">sequential</option><option value="diverging">around zero</option></select></label>}</div>
            {facts.drawable === "none" ? <p className="hint">A side of this array has length 0: there is nothing to draw yet.</p> : <>
              <Controls facts={facts} view={view} change={turn} fixed={asked.answer?.fixed} />
              <Answered asked={asked}>{(picture) => (
                <div className="stack" style={{ gap: 8 }}>
                  <PictureView picture={picture} scale={scaleName === "auto" ? (crossesZero(picture) ? "diverging" : "sequential") : scaleName} onPick={(at) => {
                    const place_ = [...view.at];
                    if (picture.rows && view.rows !== null && at.row !== null) place_[view.rows] = picture.rows.indices[at.row]!;
                    if (picture.columns && view.columns !== null) place_[view.columns] = picture.columns.indices[at.column]!;
                    setCell(place_);
                  }} onZoom={(area) => go(href(place, repository, "array", { ...query, box: boxOf(picture, area) }))} />
                  <Shown picture={picture} axes={facts.axes} />
                </div>)}</Answered></>}
            {cellAt && <CellFacts place={place} repository={repository} version={version} path={facts.path} at={cellAt} axes={facts.axes} />}
          </section>
          <section className="card stack" aria-label="Chunks">
            <div className="row"><h2 className="grow">Chunks</h2>{map.answer && <span className="soft small">{several(map.answer.chunks, "chunk")} there, {percent(map.answer.coverage)}{map.answer.against !== null && ` · ${count(map.answer.chunks_changed)} written in this version`}</span>}</div>
            <Answered asked={map}>{(found) => <Chunks map={found} />}</Answered>
            {facts.axes[0] && <CoverageFacts place={place} repository={repository} version={version} path={facts.path} axes={facts.axes} />}
          </section>
        </div>
        <div className="stack">
          <section className="card stack" aria-label="Metadata">
            <h2>Metadata</h2>
            <Facts pairs={[["type", <span className="mono">{facts.data_type}</span>], ["fill value", <span className="mono">{facts.fill_value}</span>], ["values", size(facts.logical_bytes)],
              ["stored", chunks ? storedText(facts.logical_bytes, chunks) : facts.chunks_unknown],
              ["chunks", chunks ? [["native", chunks.native], ["inline", chunks.inline], ["virtual", chunks.virtual], ["missing", chunks.missing]].filter(([, n]) => n).map(([name, n]) => `${count(n as number)} ${name}`).join(", ") || "none" : null],
              ["codecs", facts.codecs.map((one) => String(one.name ?? "?")).join(" → ")]]} />
            {facts.axes.length > 0 && <div className="scroll"><table><thead><tr><th>dimension</th><th className="num">length</th><th className="num">chunk</th><th>units</th></tr></thead>
              <tbody>{facts.axes.map((axis, n) => <tr key={n}><td>{axis.coordinate && axis.coordinate !== facts.path ? <a href={href(place, repository, "array", { version, path: axis.coordinate })}>{visible(axis.name)}</a> : visible(axis.name)}</td><td className="num">{count(axis.length)}</td><td className="num">{count(axis.chunk)}</td><td className="soft">{visible(axis.units ?? "")}</td></tr>)}</tbody></table></div>}
          </section>
          {Object.keys(facts.attributes).length > 0 && <section className="card stack" aria-label="Attributes"><h2>Attributes</h2>
            <Facts pairs={Object.entries(facts.attributes).map(([name, value]) => [name, typeof value === "object" ? <Json value={value} /> : visible(String(value))])} /></section>}
          <details className="card"><summary>Codecs</summary><Json value={facts.codecs} /></details>
        </div>
      </div>
    </div>
  );
}

function CellFacts({ place, repository, version, path, at, axes }: { place: string; repository: string; version: string; path: string; at: number[]; axes: Axis[] }): React.ReactElement {
  const asked = useAnswer<Cell>(inPlace(place, "cell"), { repository, version, path, at: at.join(",") });
  return (
    <div className="hint" role="status"><Answered asked={asked}>{(cell) => (
      <Facts pairs={[["value", <b>{visible(cell.value)}</b>], ["at", axes.map((axis, n) => `${axis.name} ${cell.labels[axis.name] ?? cell.index[n]}`).join(", ")],
        ["chunk", <span className="mono">[{cell.chunk.join(", ")}] {cell.kind}</span>], ["file", cell.file && <span className="mono">{cell.file}</span>],
        ["bytes", cell.length !== null && `${count(cell.length ?? 0)}${cell.offset !== null ? `, from ${count(cell.offset)}` : ""}`], ["checksum", cell.checksum]]} />)}</Answered></div>
  );
}

/** How many labels along a dimension are there, and which are missing. */
export function CoverageBar({ place, repository, version, path, dim, quiet = false }: { place: string; repository: string; version: string; path: string; dim: string; quiet?: boolean }): React.ReactElement | null {
  const asked = useAnswer<Coverage>(inPlace(place, "coverage"), { repository, version, path, dim });
  if (quiet && asked.answer === null) return null;
  return <Answered asked={asked}>{(found) => {
    const there = found.wanted - found.missing_total;
    return (
      <div className="stack small" style={{ gap: 6 }}>
        <div className="row">{quiet && <b>{visible(found.dim)}</b>}<div className="bar grow"><i style={{ width: `${(100 * there) / Math.max(1, found.wanted)}%` }} /></div><span>{count(there)} of {several(found.wanted, "label")} {there === 1 ? "has" : "have"} chunks</span></div>
        {found.missing_total > 0 && <p className="soft">Missing: {found.missing.slice(0, 12).map((one) => visible(one.replace(/^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:00)?$/, "$1 $2"))).join(", ")}{found.missing_total > 12 ? ` and ${count(found.missing_total - 12)} more` : ""}</p>}
        {found.shared && <p className="soft">A chunk holds several labels, so some may look written that are not.</p>}
      </div>);
  }}</Answered>;
}

function CoverageFacts({ place, repository, version, path, axes }: { place: string; repository: string; version: string; path: string; axes: Axis[] }): React.ReactElement {
  const [dim, setDim] = useState(axes.find((axis) => axis.chunks > 1 && axis.coordinate !== null && axis.coordinate !== path)?.name ?? "");
  return (
    <div className="stack" style={{ gap: 8 }}>
      <label>Coverage along <select value={dim} onChange={(event) => setDim(event.target.value)}><option value="">choose a dimension</option>{axes.map((axis) => <option key={axis.name} value={axis.name}>{visible(axis.name)}</option>)}</select></label>
      {dim !== "" && <CoverageBar place={place} repository={repository} version={version} path={path} dim={dim} />}
    </div>
  );
}

export function CompareView({ route }: { route: Route }): React.ReactElement {
  const { place, repository, query } = route;
  const right = query.right || "main", left = query.left || `${right}~1`, path = query.path || "/";
  const facts = useAnswer<ArrayFacts>(inPlace(place, "array"), { repository, version: right, path });
  const refs = useAnswer<Refs>(inPlace(place, "refs"), { repository });
  return <Answered asked={facts}>{(found) => <ComparePage route={route} facts={found} left={left} right={right} refs={refs.answer} />}</Answered>;
}

function ComparePage({ route, facts, left, right, refs }: { route: Route; facts: ArrayFacts; left: string; right: string; refs: Refs | null }): React.ReactElement {
  const { place, repository, query } = route;
  const view = viewOf(facts, query);
  const change = (next: Record<string, string | undefined>) => go(href(place, repository, "compare", { ...query, left, right, ...next }), true);
  const turn = (next: Record<string, string>) => change("at" in next ? next : { ...next, box: undefined });
  const asked = useAnswer<Comparison>(inPlace(place, "compare"), JSON.parse(useCalm(JSON.stringify(
    { repository, path: facts.path, left, right, rows: view.rows, columns: view.columns, at: view.at.join(","), box: query.box, height: 240, width: 480 }), 120)));
  const names = [...Object.keys(refs?.branches ?? {}), ...Object.keys(refs?.tags ?? {})];
  return (
    <div className="stack">
      <div className="row"><h2 className="grow" style={{ fontSize: 18 }}>{visible(facts.path)}</h2>
        <datalist id="ick-versions">{names.map((name) => <option key={name} value={name} />)}</datalist>
        <Version label="Left" value={left} set={(value) => change({ left: value })} />
        <button aria-label="Swap the two versions" onClick={() => change({ left: right, right: left })}>⇄</button>
        <Version label="Right" value={right} set={(value) => change({ right: value })} />
        {query.box && <button onClick={() => change({ box: undefined })}>Whole array</button>}
      </div>
      {facts.axes.length > 1 && <section className="card"><Controls facts={facts} view={view} change={turn} fixed={asked.answer?.right.fixed} /></section>}
      <Answered asked={asked}>{(found) => {
        const scale: Scale = crossesZero(found.right) || crossesZero(found.left) ? "diverging" : "sequential";
        const both = [found.left, found.right].map((one) => rangeOf(one, scale));
        const range = { low: Math.min(...both.map((one) => one.low)), high: Math.max(...both.map((one) => one.high)) };
        const draw = (picture: Picture, title: string, own: Scale | null) => (
          <section className="card stack" style={{ gap: 8 }} aria-label={title}><h3>{title}</h3>
            {picture.rows ? <Image picture={picture} scale={own ?? scale} range={own ? rangeOf(picture, own) : range} onZoom={(area) => go(href(place, repository, "compare", { ...query, left, right, box: boxOf(picture, area) }))} label={`${title} of ${picture.path}`} /> : <PictureView picture={picture} scale={own ?? scale} />}
            <Shown picture={picture} axes={facts.axes} /></section>);
        return (
          <div className="stack">
            <div className="three">{draw(found.left, `Left: ${left}`, null)}{draw(found.right, `Right: ${right}`, null)}</div>
            {found.difference ? draw(found.difference, "Difference: right − left", "diverging") : <p className="hint">There is no difference to draw: {found.reason}.</p>}
          </div>);
      }}</Answered>
    </div>
  );
}

function Version({ label, value, set }: { label: string; value: string; set: (value: string) => void }): React.ReactElement {
  const [text, change] = useState(value);
  React.useEffect(() => change(value), [value]);
  return <form onSubmit={(event) => { event.preventDefault(); set(text); }}><label>{label} <input list="ick-versions" size={26} value={text} onChange={(event) => change(event.target.value)} onBlur={() => text !== value && set(text)} /></label></form>;
}
