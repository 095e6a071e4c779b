// Small parts that every view uses. Stored text only ever becomes a text node.
import React, { useEffect, useState } from "react";
import { ask, type Commit, type Maker, type Mark, Problem, type Query } from "./api";
import { ago, exact, shortId } from "./format";
import { href } from "./route";

export type Asked<T> = { answer: T | null; problem: string | null; busy: boolean; again?: () => void };

/** Ask when the question changes; the answer before stays until the next one is there. */
export function useAnswer<T>(path: string | null, query: Query): Asked<T> {
  const [state, set] = useState<Asked<T>>({ answer: null, problem: null, busy: path !== null });
  const key = JSON.stringify([path, query]);
  const [tries, setTries] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const stop = new AbortController();
    set((old) => ({ ...old, busy: true }));
    ask<T>(path, query, stop.signal).then(
      (answer) => set({ answer, problem: null, busy: false }),
      (error: unknown) => { if (!stop.signal.aborted) set({ answer: null, problem: reason(error), busy: false }); },
    );
    return () => stop.abort();
  }, [key, tries]);
  return { ...state, again: () => setTries(tries + 1) };
}

/** Control characters and marks that turn the direction of text, made visible: stored text could hide or reverse what follows it. */
export const visible = (text: string): string =>
  text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, (one) => `\u2039${one.codePointAt(0)!.toString(16).padStart(4, "0")}\u203a`);

export const reason = (error: unknown): string =>
  error instanceof Problem ? error.message : "The server cannot be reached. Check your connection and try again.";

export function Answered<T>({ asked, children }: { asked: Asked<T>; children: (answer: T) => React.ReactNode }): React.ReactElement {
  if (asked.problem !== null) return (
    <div className="problem" role="alert"><p>{visible(asked.problem)}</p>
      <p className="row small" style={{ marginTop: 6 }}>{asked.again && <button onClick={asked.again}>Try again</button>}<a href={href()}>All repositories</a></p></div>);
  if (asked.answer === null) return <Waiting />;
  return <div style={asked.busy ? { opacity: 0.6 } : undefined}>{children(asked.answer)}</div>;
}

/** Says after a while that it is the storage that takes long, and not the page that hangs. */
export function Waiting(): React.ReactElement {
  const [long, set] = useState(false);
  useEffect(() => { const timer = setTimeout(() => set(true), 3000); return () => clearTimeout(timer); }, []);
  return <p className="wait" role="status">{long ? "Still loading: the storage is slow, or there is much to read. It is given up after a while." : "Loading …"}</p>;
}

export function Time({ at }: { at: string }): React.ReactElement {
  return <time dateTime={at} title={exact(at)}>{ago(at)}</time>;
}

export function Names({ commit, place, repository }: { commit: Commit; place: string; repository: string }): React.ReactElement {
  return (
    <>
      {commit.branches.map((name) => <a key={`b${name}`} className="badge branch" title={`branch ${name}`} href={href(place, repository, "history", { version: `branch:${name}` })}>{visible(name)}</a>)}
      {commit.tags.map((name) => <span key={`t${name}`} className="badge tag" title={`tag ${name}`}>{visible(name)}</span>)}
    </>
  );
}

export function MadeBy({ maker }: { maker: Maker }): React.ReactElement {
  const text = visible(`${cut(maker.dag_id, 48)} › ${shortRun(maker.run_id)} › ${cut(maker.task_id, 48)}${maker.map_index >= 0 ? ` [${maker.map_index}]` : ""}`);
  const about = `DAG ${maker.dag_id}, run ${maker.run_id}, task ${maker.task_id}`;
  return maker.page && maker.page.startsWith("/") ? <a href={maker.page} title={about}>{text}</a> : <span title={about}>{text}</span>;
}

/** The day or the time of a run, where its id has one. */
const shortRun = (id: string): string => /^(scheduled|manual|backfill|asset_triggered|dataset_triggered)__(\d{4}-\d\d-\d\dT\d\d:\d\d)/.exec(id)?.slice(1).join(" ").replace("T", " ") ?? cut(id, 40);

export function Id({ id, place, repository }: { id: string; place: string; repository: string }): React.ReactElement {
  return <a className="mono" title={id} href={href(place, repository, "snapshot", { version: id })}>{shortId(id)}</a>;
}

export const Badge = ({ mark }: { mark: Mark }): React.ReactElement => <span className={`badge ${mark}`}>{mark}</span>;

export const cut = (text: string, most: number): string => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
export const firstLine = (text: string): string => visible(cut(text.trim().split("\n", 1)[0] ?? "", 160)) || "(no message)";

/** Whether the page is dark now; drawings ask for it, because a canvas has no style sheet. */
export function useDark(): boolean {
  const now = () => {
    const names = document.documentElement.classList;
    return names.contains("dark") || (!names.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
  };
  const [dark, set] = useState(now);
  useEffect(() => {
    const look = () => set(now());
    const watch = new MutationObserver(look);
    watch.observe(document.documentElement, { attributes: true, attributeFilter: ["class", "data-theme"] });
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", look);
    return () => { watch.disconnect(); media.removeEventListener("change", look); };
  }, []);
  return dark;
}

export function useWidth(): [React.RefObject<HTMLDivElement | null>, number] {
  const ref = React.useRef<HTMLDivElement | null>(null);
  const [width, set] = useState(0);
  useEffect(() => {
    if (!ref.current) return;
    const watch = new ResizeObserver((entries) => set(Math.floor(entries[0]?.contentRect.width ?? 0)));
    watch.observe(ref.current);
    return () => watch.disconnect();
  }, []);
  return [ref, width];
}

export const style = (name: string): string =>
  getComputedStyle(document.querySelector(".ick") ?? document.documentElement).getPropertyValue(name).trim();

export function Json({ value }: { value: unknown }): React.ReactElement {
  return <pre>{visible(typeof value === "string" ? value : JSON.stringify(value, null, 2))}</pre>;
}

export function Facts({ pairs }: { pairs: [string, React.ReactNode][] }): React.ReactElement {
  return <dl>{pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => <React.Fragment key={name}><dt>{visible(name)}</dt><dd>{value}</dd></React.Fragment>)}</dl>;
}

/** Text that is asked for only when typing pauses. */
export function useCalm(text: string, pause = 300): string {
  const [calm, set] = useState(text);
  useEffect(() => { const timer = setTimeout(() => set(text), pause); return () => clearTimeout(timer); }, [text]);
  return calm;
}
