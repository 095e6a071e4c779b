import React, { useState } from "react";
import { type ChunkMap, inPlace, type Refs, type SnapshotPage, type TreeNode, type TreePage } from "./api";
import { count, exact, several, shortId, size } from "./format";
import { Answered, Badge, Facts, Id, Json, MadeBy, Names, Time, useAnswer, useCalm, visible } from "./parts";
import { CoverageBar } from "./array";
import { Chunks } from "./plot";
import { go, href, type Route } from "./route";

function nodeShape(node: TreeNode): string {
  if (!node.shape) return "";
  const sides = node.shape.map((length, n) => (node.dimension_names?.[n] ? `${node.dimension_names[n]}: ${length}` : String(length)));
  return `${node.data_type ?? "?"} (${sides.join(", ")})`;
}

type TreeOptions = { place: string; repository: string; version: string; against: string; marked: boolean; search: string };

function Branch({ options, path, open }: { options: TreeOptions; path: string; open: boolean }): React.ReactElement {
  const [limit, setLimit] = useState(100);
  const { place, ...rest } = options;
  const asked = useAnswer<TreePage>(open ? inPlace(place, "tree") : null, { ...rest, against: rest.against || "none", path, limit });
  return (
    <Answered asked={asked}>{(page) => (
      <>
        <ul className="tree">{page.nodes.map((node) => <Leaf key={node.path} node={node} options={options} full={options.search !== ""} />)}</ul>
        {page.total === 0 && <p className="soft small">{options.search ? "No path has this in it." : options.marked ? "Nothing changed here." : path === "/" ? "This version has no groups and no arrays yet." : "This group is empty."}</p>}
        {page.total > page.nodes.length && <button className="plain" onClick={() => setLimit(Math.min(500, limit + 200))} disabled={limit >= 500}>
          {limit >= 500 ? `${count(page.total - page.nodes.length)} more: search for them` : `Show more of ${count(page.total)}`}</button>}
      </>)}</Answered>
  );
}

function Leaf({ node, options, full }: { node: TreeNode; options: TreeOptions; full: boolean }): React.ReactElement {
  const group = node.type === "group" && node.mark !== "removed";
  const [open, setOpen] = useState(group && !full && node.path.split("/").length <= 2);
  return (
    <li>
      <div className="node">
        {group && !full ? <button className="twist" aria-label={visible(node.path)} aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "▾" : "▸"}</button> : <span style={{ width: 18 }} />}
        <span className={`dot ${node.type} ${node.mark ?? ""}`} />
        {node.type === "array" && node.mark !== "removed"
          ? <a className="short" title={visible(node.path)} href={href(options.place, options.repository, "array", { version: options.version, path: node.path, against: options.against })}>{visible(full ? node.path : node.name)}</a>
          : <span className="short" title={visible(node.path)} style={node.mark === "removed" ? { textDecoration: "line-through" } : undefined}>{visible(full ? node.path : node.name)}</span>}
        <span className="soft small shape" title={nodeShape(node)}>{visible(nodeShape(node))}{group && node.children > 0 ? several(node.children, "child", "children") : ""}</span>
        {node.mark && <Badge mark={node.mark} />}
        {node.chunks_changed > 0 && <span className="soft small">{several(node.chunks_changed, "chunk")}</span>}
        {node.marks_below > 0 && !open && <span className="badge changed">{count(node.marks_below)} inside</span>}
      </div>
      {group && open && !full && <Branch options={options} path={node.path} open />}
    </li>
  );
}

export function ContentsView({ route, version: given, against: other }: { route: Route; version?: string; against?: string }): React.ReactElement {
  const { place, repository, query } = route;
  const version = given ?? (query.version || "main"), against = other ?? query.against ?? "";
  const [search, setSearch] = useState("");
  const [marked, setMarked] = useState(false);
  const options = { place, repository, version, against, marked, search: useCalm(search) };
  return (
    <section className="card stack" aria-label="Groups and arrays">
      <div className="row"><h2 className="grow">Contents</h2>
        {against && <label><input type="checkbox" checked={marked} onChange={(event) => setMarked(event.target.checked)} style={{ minHeight: 0 }} /> only what changed</label>}
        <input type="search" aria-label="Search paths" placeholder="Search paths" value={search} onChange={(event) => setSearch(event.target.value)} /></div>
      <div><Branch key={JSON.stringify([options.search, marked])} options={options} path="/" open /></div>
    </section>
  );
}

function Changed({ node, route, version, against }: { node: TreeNode; route: Route; version: string; against: string }): React.ReactElement {
  const asked = useAnswer<ChunkMap>(inPlace(route.place, "chunks"), { repository: route.repository, version, against, path: node.path });
  // Arrays grow along their first dimension, chunk by chunk.
  const growing = node.shape && node.shape.length > 1 && node.shape[0]! > (node.chunk_shape?.[0] ?? 0) ? node.dimension_names?.[0] : null;
  return (
    <section className="card stack" style={{ gap: 10 }} aria-label={`Chunks of ${node.path}`}>
      <div className="row"><a className="grow" href={href(route.place, route.repository, "array", { version, path: node.path, against })}><b>{visible(node.path)}</b></a>{node.mark && <Badge mark={node.mark} />}<span className="soft small">{several(node.chunks_changed, "chunk")} written</span></div>
      <Answered asked={asked}>{(map) => <Chunks map={map} />}</Answered>
      {growing && <CoverageBar place={route.place} repository={route.repository} version={version} path={node.path} dim={growing} quiet />}
      {node.mark !== "added" && <div className="row small"><a href={href(route.place, route.repository, "compare", { path: node.path, left: against, right: version })}>Compare the values of both versions</a></div>}
    </section>
  );
}

export function SnapshotView({ route }: { route: Route }): React.ReactElement {
  const { place, repository, query } = route;
  const version = query.version || "main";
  const asked = useAnswer<SnapshotPage>(inPlace(place, "snapshot"), { repository, version, against: query.against });
  const refs = useAnswer<Refs>(inPlace(place, "refs"), { repository });
  const bytes = useAnswer<{ bytes: Record<string, number | null> }>(asked.answer ? inPlace(place, "written") : null, { repository, ids: asked.answer?.commit.id });
  const [shown, setShown] = useState(4);
  return <Answered asked={asked}>{(page) => {
    const { commit } = page;
    const [title = "", ...rest] = commit.message.trim().split("\n");
    return (
      <div className="stack">
        <section className="card stack">
          <div className="row"><h2 className="grow" style={{ fontSize: 18 }}>{visible(title) || "(no message)"}</h2><Names commit={commit} place={place} repository={repository} /></div>
          {rest.join("\n").trim() && <pre>{visible(rest.join("\n").trim())}</pre>}
          <div className="row soft small" style={{ gap: "2px 18px" }}>
            <span className="mono">{commit.id}</span><span>{exact(commit.written_at)} · <Time at={commit.written_at} /></span>
            {commit.maker && <span>by <MadeBy maker={commit.maker} /></span>}
            {commit.parent_id && <span>parent <Id id={commit.parent_id} place={place} repository={repository} /></span>}
          </div>
          <div className="figures">
            {(bytes.answer?.bytes[commit.id] ?? 0) > 0 && !query.against && <div><b>{size(bytes.answer!.bytes[commit.id]!)}</b><span className="soft small">written</span></div>}
            {commit.rebases > 0 && <div><b>{count(commit.rebases)}</b><span className="soft small">{commit.rebases === 1 ? "rebase" : "rebases"}</span></div>}
            {page.against !== null && <><div><b style={page.added ? { color: "var(--good)" } : undefined}>{page.added ? "+" : ""}{count(page.added)}</b><span className="soft small">added</span></div><div><b style={page.changed ? { color: "var(--warn)" } : undefined}>{count(page.changed)}</b><span className="soft small">changed</span></div>
              <div><b style={page.removed ? { color: "var(--bad)" } : undefined}>{page.removed ? "−" : ""}{count(page.removed)}</b><span className="soft small">removed</span></div>{page.moved > 0 && <div><b>{count(page.moved)}</b><span className="soft small">moved</span></div>}<div><b>{count(page.chunks)}</b><span className="soft small">chunks written</span></div></>}
            <div><b>{count(page.manifests)}</b><span className="soft small">{page.manifests === 1 ? "manifest" : "manifests"}, {size(page.manifest_bytes)}</span></div>
          </div>
          <form className="row" onSubmit={(event) => event.preventDefault()}>
            <label>Compared with
              <select value={query.against ?? ""} onChange={(event) => go(href(place, repository, "snapshot", { ...query, against: event.target.value }))}>
                <option value="">its parent{commit.parent_id ? ` ${shortId(commit.parent_id)}` : ""}</option>
                {query.against && !(query.against in { ...refs.answer?.branches, ...refs.answer?.tags }) && <option value={query.against}>{query.against}</option>}
                {Object.keys(refs.answer?.branches ?? {}).map((name) => <option key={name} value={`branch:${name}`}>branch {visible(name)}</option>)}
                {Object.keys(refs.answer?.tags ?? {}).map((name) => <option key={`t${name}`} value={`tag:${name}`}>tag {visible(name)}</option>)}
              </select></label>
            <a className="button" href={href(place, repository, "history", { version: commit.id })}>History up to here</a>
          </form>
          {page.unknown && <p className="hint">What changed is not known: {page.unknown}</p>}
        </section>
        <div className="two">
          <div className="stack">
            {page.against !== null && page.arrays.slice(0, shown).map((node) => <Changed key={node.path} node={node} route={route} version={commit.id} against={page.against!} />)}
            {page.arrays.length > shown && <button onClick={() => setShown(shown + 8)}>Show {several(Math.min(8, page.arrays.length - shown), "more changed array")}</button>}
            {page.arrays.length === 0 && <ContentsView key={`${commit.id} ${page.against}`} route={route} version={commit.id} against={page.against ?? ""} />}
          </div>
          <div className="stack">
            {page.arrays.length > 0 && <ContentsView key={`${commit.id} ${page.against}`} route={route} version={commit.id} against={page.against ?? ""} />}
            {page.checks.length > 0 && <section className="card stack"><h2>Checks</h2><div className="scroll"><table><tbody>{page.checks.map((one, at) => (
              <tr key={at}><td><span className={`badge ${one.passed === "passed" ? "added" : "removed"}`}>{one.passed}</span></td><td>{one.check}</td><td>{one.subject}</td><td>{one.value}</td><td>{one.text}</td></tr>))}</tbody></table></div></section>}
            {Object.keys(commit.metadata).length > 0 && <section className="card stack"><h2>Metadata of the commit</h2><Facts pairs={Object.entries(commit.metadata).map(([name, value]) => [name, typeof value === "object" ? <Json value={value} /> : visible(String(value))])} /></section>}
          </div>
        </div>
      </div>
    );
  }}</Answered>;
}
