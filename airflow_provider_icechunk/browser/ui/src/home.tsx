import React, { useState } from "react";
import { type Home, inPlace, type Place, type Summary } from "./api";
import { count, several, size } from "./format";
import { Answered, firstLine, Time, useAnswer, useCalm } from "./parts";
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
    <div className="stack">
      <div className="row">
        <input className="grow" type="search" aria-label="Search repositories" placeholder="Search repositories" value={search} onChange={(event) => setSearch(event.target.value)} />
        <form className="row" onSubmit={(event) => { event.preventDefault(); if (place && repository) go(href(place, repository, "history")); }}>
          <input aria-label="Connection" placeholder="connection" size={16} value={place} onChange={(event) => setPlace(event.target.value)} />
          <input aria-label="Repository" placeholder="repository, . for the root" size={20} value={repository} onChange={(event) => setRepository(event.target.value)} />
          <button disabled={!place || !repository}>Open</button>
        </form>
      </div>
      {opened.length > 0 && (
        <div className="row small"><span className="soft">Recently opened</span>
          {opened.map((one) => <a key={`${one.place} ${one.repository}`} className="badge" href={href(one.place, one.repository, "history")}>{one.place} / {one.repository}</a>)}
        </div>
      )}
      <Answered asked={asked}>{(home) => home.places.length === 0
        ? <p className="hint">There is no Icechunk connection that you may read. Name one above, or ask whoever administers Airflow to add one.</p>
        : <div className="stack">{home.places.map((one) => <PlaceView key={one.id} place={one} search={search} />)}</div>}
      </Answered>
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
          {found.total === 0 && <p className="hint">No repositories{search ? " with this name" : " below this root yet"}.</p>}
          <div className="cards">{found.paths.map((path) => <Card key={path} place={place.id} path={path} />)}</div>
          {found.total > found.paths.length && <p style={{ marginTop: 12 }}><button onClick={() => setLimit(Math.min(200, limit * 3))}>Show more of {count(found.total)}</button></p>}
        </>
      )}</Answered>
    </section>
  );
}

function Card({ place, path }: { place: string; path: string }): React.ReactElement {
  const asked = useAnswer<Summary>(inPlace(place, "summary"), { repository: path });
  const found = asked.answer;
  return (
    <a className="card stack" style={{ gap: 8, display: "flex" }} href={href(place, path, "history")}>
      <div className="row"><h2 className="grow">{path === "." ? "(the root)" : path}</h2>
        {found && <span className="badge" title="generation of the format">format {found.generation}</span>}</div>
      {asked.problem !== null && <p className="problem small">{asked.problem}</p>}
      {!found && asked.problem === null && <p className="soft small">Loading …</p>}
      {found && (
        <>
          {found.head && <p className="small">{firstLine(found.head.message)}<span className="soft"> · <Time at={found.head.written_at} /></span></p>}
          <p className="soft small">{several(found.arrays, "array")} · {found.logical_bytes !== null && <>{size(found.logical_bytes)} of values · </>}{several(found.references, "chunk")} · {several(found.branches, "branch", "branches")} · {several(found.tags, "tag")}</p>
          <div className="row" style={{ gap: 6 }}>
            {found.checks_passed === true && <span className="badge added">checks passed</span>}
            {found.checks_passed === false && <span className="badge removed">checks failed</span>}
            {found.last_collection && <span className="badge">collected <Time at={found.last_collection} /></span>}
            {found.last_expiry && <span className="badge">expired <Time at={found.last_expiry} /></span>}
          </div>
        </>
      )}
    </a>
  );
}
