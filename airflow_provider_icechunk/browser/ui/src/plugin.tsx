// For Airflow: the page in its navigation, and tabs on a task instance and a run that show what it
// wrote. Airflow hands over who it is about, and we ask its own API for the link that the task left.
import React, { useEffect, useState } from "react";
import { setBase, staticFile } from "./api";
import { App } from "./app";
import { parseRoute, type Route } from "./route";

type Given = { dagId?: string; runId?: string; taskId?: string; mapIndex?: number | string };

const here = new URL(".", import.meta.url);
setBase(new URL("..", here).pathname);
const airflow = new URL("../../", here).pathname.replace(/\/$/, "");

function useStyle(): void {
  useEffect(() => {
    const address = staticFile("browser.css");
    if (document.querySelector(`link[href="${address}"]`)) return;
    const link = document.createElement("link");
    link.rel = "stylesheet"; link.href = address;
    document.head.append(link);
  }, []);
}

/** The snapshot that a stored link leads to; links of earlier releases have another form. */
export function routeOf(link: string): Route | null {
  const address = new URL(link, window.location.origin);
  if (address.hash.startsWith("#/")) return parseRoute(address.hash);
  const old = /\/icechunk\/connections\/([^/]+)\/show$/.exec(address.pathname);
  const repository = address.searchParams.get("repository"), version = address.searchParams.get("version");
  return old && repository && version ? { place: decodeURIComponent(old[1]!), repository, view: "snapshot", query: { version } } : null;
}

async function json(path: string): Promise<Record<string, unknown>> {
  const answer = await fetch(`${airflow}/api/v2/${path}`, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(String(answer.status));
  return (await answer.json()) as Record<string, unknown>;
}

async function written(given: Given): Promise<{ task: string; route: Route }[]> {
  const run = `dags/${encodeURIComponent(given.dagId!)}/dagRuns/${encodeURIComponent(given.runId!)}/taskInstances`;
  const tasks: { task_id: string; map_index: number }[] = given.taskId
    ? [{ task_id: given.taskId, map_index: /^\d+$/.test(String(given.mapIndex)) ? Number(given.mapIndex) : -1 }]
    : (((await json(`${run}?limit=50`)).task_instances ?? []) as { task_id: string; map_index: number }[]);
  const found = await Promise.all(tasks.map(async ({ task_id, map_index }) => {
    const links = await json(`${run}/${encodeURIComponent(task_id)}/links?map_index=${map_index}`).catch(() => ({}));
    const link = ((links as { extra_links?: Record<string, string | null> }).extra_links ?? {})["Icechunk snapshot"];
    const route = link ? routeOf(link) : null;
    return route ? [{ task: map_index >= 0 ? `${task_id} [${map_index}]` : task_id, route }] : [];
  }));
  return found.flat();
}

function Written(given: Given): React.ReactElement {
  const [state, set] = useState<{ task: string; route: Route }[] | null>(null);
  const [chosen, choose] = useState(0);
  useEffect(() => { written(given).then(set, () => set([])); }, [given.dagId, given.runId, given.taskId, given.mapIndex]);
  const one = state?.[chosen];
  if (!one) return <div className="ick hosted"><p className="hint" role="status">{state === null ? "Loading …" : `This ${given.taskId ? "task" : "run"} has written nothing to an Icechunk repository.`}</p></div>;
  return (
    <>
      {state.length > 1 && <div className="ick hosted" style={{ minHeight: 0, paddingBottom: 0 }}><label>Written by <select value={chosen} onChange={(event) => choose(Number(event.target.value))}>{state.map((entry, at) => <option key={entry.task} value={at}>{entry.task}</option>)}</select></label></div>}
      <App key={chosen} hosted start={one.route} />
    </>
  );
}

function Icechunk(given: Given): React.ReactElement {
  useStyle();
  return given.runId ? <Written {...given} /> : <App hosted />;
}

const names = globalThis as unknown as Record<string, unknown>;
for (const name of ["Icechunk", "Icechunk snapshot", "AirflowPlugin"]) names[name] = Icechunk;
