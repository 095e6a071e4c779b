import React, { useState } from "react";
import { type Health, type Home, inPlace, type Place, type Summary, type MaintenanceRun } from "./api";
import { count, exact, several, size } from "./format";
import { Answered, firstLine, Time, useAnswer, useCalm, visible } from "./parts";
import { go, href } from "./route";

const RECENT = "icechunk.recent";
export type Opened = { place: string; repository: string };

export function recent(): Opened[] {
  try {
    const kept: unknown = JSON.parse(localStorage.getItem(RECENT) ?? "[]");
    return Array.isArray(kept) ? kept.filter((one) => typeof one?.place === "string" && typeof one?.repository === "string").slice(0, 6) : [];
  } catch { return []; }
}

export function remember(one: Opened): void {
  const others = recent().filter((other) => other.place !== one.place || other.repository !== one.repository);
  try { localStorage.setItem(RECENT, JSON.stringify([one, ...others].slice(0, 6))); } catch { /* private window */ }
}

export function HomeView(): React.ReactElement {
  const asked = useAnswer<Home>("home", {});
  const [search, setSearch] = useState("");
  const [place, setPlace] = useState("");
  const [repository, setRepository] = useState("");
  const opened = recent();
  return (
    <div className="stack" style={{ gap: 18 }}>
      <input type="search" aria-label="Search repositories" placeholder="Search repositories" value={search} onChange={(event) => setSearch(event.target.value)} />
      {opened.length > 0 && (
        <div className="row small"><span className="soft">Recently opened</span>
          {opened.map((one) => <a key={`${one.place} ${one.repository}`} className="badge" href={href(one.place, one.repository, "history")}>{one.place} / {one.repository}</a>)}
        </div>
      )}
      <Answered asked={asked}>{(home) => home.places.length === 0
        ? <p className="hint">There is no Icechunk connection that you may read. Open one by name below, or ask whoever administers Airflow to add one.</p>
        : <div className="stack" style={{ gap: 22 }}>{home.places.map((one) => <PlaceView key={one.id} place={one} search={search} />)}</div>}
      </Answered>
      <details><summary className="soft small">Open a repository by name</summary>
        <form className="row" style={{ marginTop: 8 }} onSubmit={(event) => { event.preventDefault(); if (place && repository) go(href(place, repository, "history")); }}>
          <input aria-label="Connection" placeholder="connection" size={18} value={place} onChange={(event) => setPlace(event.target.value)} />
          <input aria-label="Repository" placeholder="repository, . for the root" size={26} value={repository} onChange={(event) => setRepository(event.target.value)} />
          <button disabled={!place || !repository}>Open</button><span className="soft small">for connections that Airflow does not list: from the environment or a secrets backend</span>
        </form></details>
    </div>
  );
}

function PlaceView({ place, search }: { place: Place; search: string }): React.ReactElement {
  const [limit, setLimit] = useState(12);
  const asked = useAnswer<{ paths: string[]; total: number }>(inPlace(place.id, "repositories"), { search: useCalm(search), limit });
  return (
    <section className="stack" aria-label={place.title}>
      <div className="row"><h2>{place.title}</h2><span className="soft small mono">{place.location}</span></div>
      <Answered asked={asked}>{(found) => (
        <>
          {found.total === 0 && <p className="hint">{search ? "No repository has this in its name." : <>There are no repositories below this root yet. A task with <code>IcechunkCreateRepositoryOperator</code>, or <code>python -m airflow_provider_icechunk create</code>, makes one.</>}</p>}
          <div className="cards">{found.paths.map((path) => <Card key={path} place={place.id} path={path} />)}</div>
          {found.total > found.paths.length && <p style={{ marginTop: 12 }}><button onClick={() => setLimit(Math.min(200, limit * 3))}>Show more of {count(found.total)}</button></p>}
        </>
      )}</Answered>
    </section>
  );
}

const NAMES: Record<MaintenanceRun["what"], string> = { verify: "verified", collect: "collected", expire: "expired" };

/** One line for each thing that somebody should know, worst first. */
function HealthFacts({ place, path }: { place: string; path: string }): React.ReactElement | null {
  const { answer: found, problem } = useAnswer<Health>(inPlace(place, "health"), { repository: path });
  if (problem !== null) return <p className="soft small">Health is not known: {visible(problem)}</p>;
  if (!found) return <p className="soft small">Looking after its health …</p>;
  const missing = Object.entries(found.missing_labels ?? {});
  const labels = missing.reduce((sum, [, many]) => sum + many, 0);
  const done = new Set(found.maintenance.map((one) => one.what));
  return (
    <div className="row" style={{ gap: 6 }}>
      {found.maintenance.map((one) => <span key={one.what} className={`badge ${one.ok ? (one.what === "verify" ? "added" : "") : "removed"}`} title={`${one.summary || (one.ok ? "succeeded" : "failed")}, ${exact(one.at)}`}>{one.ok ? NAMES[one.what] : `${one.what} failed`} <Time at={one.at} /></span>)}
      {!done.has("verify") && <span className="badge" title="No verification is known of. Run one on the tab Maintenance, or with IcechunkVerifyOperator.">not verified yet</span>}
      {labels > 0 && <span className="badge changed" title={missing.map(([name, many]) => `${name}: ${many}`).join("\n")}>{several(labels, "label")} missing</span>}
      {found.garbage_bytes === null ? <span className="badge" title="Too large to measure at a glance: see the tab Maintenance">garbage not measured</span>
        : found.garbage_bytes > 0 && <span className={`badge ${found.garbage_bytes * 4 > (found.stored_bytes ?? 0) ? "changed" : ""}`} title="Files that no branch and no tag needs">{size(found.garbage_bytes)} garbage waiting</span>}
      {(found.rebases_lately ?? 0) > 0 && <span className="badge" title={`of ${found.commits_lately} commits in the last seven days`}>{several(found.rebased_lately ?? 0, "commit")} rebased this week</span>}
      {(found.failed_lately ?? 0) > 0 && <span className="badge removed" title="Tasks of the last seven days that failed to write">{several(found.failed_lately ?? 0, "failed write")} this week</span>}
      {found.stored_bytes !== null && <span className="badge">{size(found.stored_bytes)} stored</span>}
    </div>
  );
}

function Card({ place, path }: { place: string; path: string }): React.ReactElement {
  const asked = useAnswer<Summary>(inPlace(place, "summary"), { repository: path });
  const found = asked.answer;
  return (
    <a className="card stack" style={{ gap: 8, display: "flex" }} href={href(place, path, "history")}>
      <div className="row"><h2 className="grow">{path === "." ? "(the root)" : visible(path)}</h2>
        {found && <span className="soft small" title="generation of the format">format {found.generation}</span>}</div>
      {asked.problem !== null && <p className="problem small">{visible(asked.problem)}</p>}
      {!found && asked.problem === null && <p className="soft small">Loading …</p>}
      {found && (
        <>
          {found.head && <p className="small">{firstLine(found.head.message)}<span className="soft"> · <Time at={found.head.written_at} /></span></p>}
          <p className="soft small">{several(found.arrays, "array")} · {found.logical_bytes !== null && <>{size(found.logical_bytes)} of values · </>}{several(found.references, "chunk")} · {several(found.branches, "branch", "branches")} · {several(found.tags, "tag")}</p>
          {found.checks_passed !== null && <div><span className={`badge ${found.checks_passed ? "added" : "removed"}`}>checks {found.checks_passed ? "passed" : "failed"}</span></div>}
          <HealthFacts place={place} path={path} />
        </>
      )}
    </a>
  );
}
