import React, { useEffect, useState } from "react";
import { ask, type Commit, type HistoryPage, inPlace, type Refs, type Touched } from "./api";
import { laneColour } from "./colour";
import { count, several, size } from "./format";
import { lanes, type Row } from "./lanes";
import { firstLine, Id, MadeBy, Names, reason, Time, useAnswer, useCalm, useDark, visible, Waiting } from "./parts";
import { go, href, type Route } from "./route";

const MIDDLE = 28;
/** How far lanes lie apart: many of them must leave room for the text. */
const stepOf = (width: number): number => Math.max(5, Math.min(18, Math.floor(110 / width)));

/** One row of the graph, however tall the text beside it makes the row. */
function Graph({ row, width, linked, dark }: { row: Row; width: number; linked: boolean; dark: boolean }): React.ReactElement {
  const x = (lane: number) => 16 + lane * stepOf(width);
  const line = (lane: number, from: number, to: number | string) => <line key={lane} x1={x(lane)} x2={x(lane)} y1={from} y2={to} stroke={laneColour(lane, dark)} strokeWidth="2" />;
  return (
    <div className="graph" style={{ width: x(width - 1) + 18 }}>
      <svg width="100%" height="100%" overflow="visible" aria-hidden="true">
        {linked && row.through.map((lane) => line(lane, -1, "100%"))}
        {linked && row.comes && line(row.lane, -1, MIDDLE)}
        {linked && row.goesOn && line(row.lane, MIDDLE, "100%")}
        {linked && row.joining.map((lane) => (
          <path key={lane} d={`M${x(lane)} -1V0C${x(lane)} ${MIDDLE * 0.8} ${x(row.lane)} ${MIDDLE * 0.3} ${x(row.lane)} ${MIDDLE}`} stroke={laneColour(lane, dark)} strokeWidth="2" fill="none" />
        ))}
        <circle cx={x(row.lane)} cy={MIDDLE} r="5" fill={laneColour(linked ? row.lane : 0, dark)} stroke="var(--raised)" strokeWidth="2" />
      </svg>
    </div>
  );
}

function touchedText(touched: Touched, bytes: number): string {
  const parts = [touched.arrays && several(touched.arrays, "array"), touched.groups && several(touched.groups, "group"), touched.chunks && several(touched.chunks, "chunk"), bytes && size(bytes)];
  return parts.filter(Boolean).join(" · ") || "nothing changed";
}

export function History({ route }: { route: Route }): React.ReactElement {
  const { place, repository, query } = route;
  const refs = useAnswer<Refs>(inPlace(place, "refs"), { repository });
  const [text, setText] = useState(query.text ?? "");
  const [dag, setDag] = useState(query.dag ?? "");
  const [path, setPath] = useState(query.path ?? "");
  const calm = useCalm(JSON.stringify([text, dag, path]));
  const wanted = { version: query.version ?? "", text: query.text ?? "", dag: query.dag ?? "", path: query.path ?? "", since: query.since ?? "", until: query.until ?? "" };
  const key = JSON.stringify([place, repository, wanted]);
  const [state, set] = useState<{ key: string; commits: Commit[]; cursor: string | null; examined: number; problem: string | null; busy: boolean }>(
    { key, commits: [], cursor: null, examined: 0, problem: null, busy: true });
  const dark = useDark();
  const [bytes, setBytes] = useState<Record<string, number | null>>({});

  useEffect(() => {
    const [t, d, p] = JSON.parse(calm) as string[];
    if (t !== wanted.text || d !== wanted.dag || p !== wanted.path) go(href(place, repository, "history", { ...wanted, text: t, dag: d, path: p }), true);
  }, [calm]);

  const load = (cursor: string | null, before: Commit[], examined: number, stop?: AbortSignal): void => {
    set((old) => ({ ...old, key, busy: true, commits: before }));
    ask<HistoryPage>(inPlace(place, "history"), { repository, ...wanted, cursor, limit: 50 }, stop).then(
      (page) => {
        const known = new Set(before.map((one) => one.id));
        const commits = [...before, ...page.commits.filter((one) => !known.has(one.id))];
        set({ key, commits, cursor: page.cursor, examined: examined + page.examined, problem: null, busy: false });
        // Bytes take reading manifests: the history does not wait for them.
        if (page.commits.length > 0) ask<{ bytes: Record<string, number | null> }>(inPlace(place, "written"), { repository, ids: page.commits.map((one) => one.id).join(".") }, stop)
          .then((found) => setBytes((old) => ({ ...old, ...found.bytes })), () => undefined);
      },
      (error: unknown) => { if (!stop?.aborted) set((old) => ({ ...old, problem: reason(error), busy: false })); });
  };
  useEffect(() => {
    const stop = new AbortController();
    load(null, [], 0, stop.signal);
    return () => stop.abort();
  }, [key]);

  const filtered = Boolean(wanted.text || wanted.dag || wanted.path || wanted.since || wanted.until);
  const { rows, width } = lanes(state.commits, refs.answer?.branches.main);
  const shown = filtered ? 1 : width;
  const choose = (change: Record<string, string>) => go(href(place, repository, "history", { ...wanted, ...change }));
  return (
    <div className="stack">
      {refs.problem === null && <form className="row" role="search" onSubmit={(event) => event.preventDefault()}>
        <label>Branch or tag
          <select value={wanted.version} onChange={(event) => choose({ version: event.target.value })}>
            <option value="">all branches</option>
            {Object.keys(refs.answer?.branches ?? {}).map((name) => <option key={name} value={`branch:${name}`}>{visible(name)}</option>)}
            {Object.keys(refs.answer?.tags ?? {}).map((name) => <option key={`t${name}`} value={`tag:${name}`}>tag {visible(name)}</option>)}
          </select>
        </label>
        <input className="grow" aria-label="Text in the message or id" placeholder="Search messages and ids" value={text} onChange={(event) => setText(event.target.value)} />
        <input aria-label="DAG" placeholder="DAG" size={14} value={dag} onChange={(event) => setDag(event.target.value)} />
        <input aria-label="Path of an array or group" placeholder="/path/of/array" size={18} value={path} onChange={(event) => setPath(event.target.value)} />
        <label>since <input type="date" value={wanted.since} onChange={(event) => choose({ since: event.target.value })} /></label>
        <label>until <input type="date" value={wanted.until} onChange={(event) => choose({ until: event.target.value })} /></label>
      </form>}
      {state.problem !== null && <div className="problem" role="alert"><p>{visible(state.problem)}</p><p className="row small" style={{ marginTop: 6 }}><button onClick={() => load(null, [], 0)}>Try again</button><a href={href()}>All repositories</a></p></div>}
      {!state.busy && state.problem === null && state.commits.length === 0 && <p className="hint">{filtered ? "No commit fits this filter. Take something out of it, or search older commits." : "There are no commits."}</p>}
      {state.commits.length > 0 && (
        <div className="log" role="list" aria-label="History, newest first">
          {state.commits.map((commit, at) => (
            <div className="commit" role="listitem" key={commit.id}>
              <Graph row={filtered ? { lane: 0, through: [], joining: [], goesOn: false, comes: false } : rows[at]!} width={shown} linked={!filtered} dark={dark} />
              <div className="what">
                <div className="row" style={{ gap: "2px 7px" }}>
                  <a className="message" href={href(place, repository, "snapshot", { version: commit.id })}>{firstLine(commit.message)}</a>
                  <Names commit={commit} place={place} repository={repository} />
                </div>
                <div className="row soft small" style={{ gap: "0 12px" }}>
                  <Id id={commit.id} place={place} repository={repository} />
                  {commit.maker && <MadeBy maker={commit.maker} />}
                  {commit.touched && <span>{touchedText(commit.touched, bytes[commit.id] ?? 0)}</span>}
                  {commit.rebases > 0 && <span className="badge" title="How often it was moved over commits of others before it landed">rebased{commit.rebases > 1 ? ` ${count(commit.rebases)} times` : ""}</span>}
                </div>
              </div>
              <div className="side"><Time at={commit.written_at} /></div>
            </div>
          ))}
        </div>
      )}
      <div className="row" aria-live="polite">
        {state.busy && <Waiting />}
        {!state.busy && state.cursor !== null && <button onClick={() => load(state.cursor, state.commits, state.examined)}>{filtered ? "Search older commits" : "Show older commits"}</button>}
        {!state.busy && state.problem === null && <span className="soft small">{filtered ? `${several(state.commits.length, "match", "matches")} in ${several(state.examined, "commit")}` : several(state.commits.length, "commit")}{state.cursor === null ? ", the whole history" : ""}</span>}
        {(refs.answer?.more_branches ?? 0) > 0 && <span className="soft small">{count(refs.answer!.more_branches)} more branches are not listed</span>}
      </div>
    </div>
  );
}
