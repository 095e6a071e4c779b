import React, { useEffect, useState } from "react";
import { ask, type Commit, type HistoryPage, inPlace, type Refs } from "./api";
import { laneColour } from "./colour";
import { count, several, size } from "./format";
import { lanes, type Row } from "./lanes";
import { firstLine, Id, MadeBy, Names, reason, Time, useAnswer, useCalm, useDark, visible } from "./parts";
import { go, href, type Route } from "./route";

const STEP = 18, TALL = 56;

function Graph({ row, width, linked, dark }: { row: Row; width: number; linked: boolean; dark: boolean }): React.ReactElement {
  const x = (lane: number) => 16 + lane * STEP;
  const colour = (lane: number) => laneColour(lane, dark);
  const middle = TALL / 2;
  return (
    <svg width={x(width - 1) + 18} height="100%" viewBox={`0 0 ${x(width - 1) + 18} ${TALL}`} preserveAspectRatio="none" overflow="visible" aria-hidden="true">
      {linked && row.through.map((lane) => <path key={lane} d={`M${x(lane)} -1V${TALL + 1}`} stroke={colour(lane)} strokeWidth="2" fill="none" />)}
      {linked && row.comes && <path d={`M${x(row.lane)} -1V${middle}`} stroke={colour(row.lane)} strokeWidth="2" />}
      {linked && row.goesOn && <path d={`M${x(row.lane)} ${middle}V${TALL + 1}`} stroke={colour(row.lane)} strokeWidth="2" />}
      {linked && row.joining.map((lane) => (
        <path key={lane} d={`M${x(lane)} -1V0C${x(lane)} ${middle * 0.8} ${x(row.lane)} ${middle * 0.3} ${x(row.lane)} ${middle}`} stroke={colour(lane)} strokeWidth="2" fill="none" />
      ))}
      <circle cx={x(row.lane)} cy={middle} r="5" fill={colour(linked ? row.lane : 0)} stroke="var(--raised)" strokeWidth="2" />
    </svg>
  );
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
  const { rows, width } = lanes(state.commits);
  const shown = filtered ? 1 : width;
  const choose = (change: Record<string, string>) => go(href(place, repository, "history", { ...wanted, ...change }));
  return (
    <div className="stack">
      <form className="row" role="search" onSubmit={(event) => event.preventDefault()}>
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
      </form>
      {state.problem !== null && <div className="problem" role="alert"><p>{visible(state.problem)}</p><p className="row small" style={{ marginTop: 6 }}><button onClick={() => load(null, [], 0)}>Try again</button><a href={href()}>All repositories</a></p></div>}
      {!state.busy && state.problem === null && state.commits.length === 0 && <p className="hint">{filtered ? "No commit fits this filter. Take something out of it, or search older commits." : "There are no commits."}</p>}
      {state.commits.length > 0 && (
        <div className="log" role="list" aria-label="History, newest first">
          {state.commits.map((commit, at) => (
            <div className="commit" role="listitem" key={commit.id}>
              <Graph row={filtered ? { lane: 0, through: [], joining: [], goesOn: false, comes: false } : rows[at]!} width={shown} linked={!filtered} dark={dark} />
              <div className="what">
                <div className="row" style={{ gap: 7 }}>
                  <a className="message" href={href(place, repository, "snapshot", { version: commit.id })}>{firstLine(commit.message)}</a>
                  <Names commit={commit} place={place} repository={repository} />
                </div>
                <div className="row soft small" style={{ gap: 12 }}>
                  <Id id={commit.id} place={place} repository={repository} />
                  {commit.maker && <MadeBy maker={commit.maker} />}
                  {commit.touched && <span>{several(commit.touched.arrays, "array")} · {several(commit.touched.chunks, "chunk")}{bytes[commit.id] ? ` · ${size(bytes[commit.id]!)} written` : " written"}</span>}
                  {commit.rebases > 0 && <span className="badge" title="How often it was moved over commits of others before it landed">rebased{commit.rebases > 1 ? ` ${count(commit.rebases)} times` : ""}</span>}
                </div>
              </div>
              <div className="side"><Time at={commit.written_at} /></div>
            </div>
          ))}
        </div>
      )}
      <div className="row" aria-live="polite">
        {state.busy && <span className="soft">Loading …</span>}
        {!state.busy && state.cursor !== null && <button onClick={() => load(state.cursor, state.commits, state.examined)}>{filtered ? "Search older commits" : "Show older commits"}</button>}
        {!state.busy && state.problem === null && <span className="soft small">{filtered ? `${several(state.commits.length, "match", "matches")} in ${several(state.examined, "commit")}` : several(state.commits.length, "commit")}{state.cursor === null ? ", the whole history" : ""}</span>}
        {(refs.answer?.more_branches ?? 0) > 0 && <span className="soft small">{count(refs.answer!.more_branches)} more branches are not listed</span>}
      </div>
    </div>
  );
}
