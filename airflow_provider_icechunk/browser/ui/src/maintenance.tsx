import React, { useState } from "react";
import { type DryRun, inPlace, type Size, type Sizes, type Verified } from "./api";
import { count, exact, several, size } from "./format";
import { Answered, useAnswer, visible } from "./parts";
import type { Route } from "./route";

const whole = (one: Size): number => one.native_bytes + one.inline_bytes + one.virtual_bytes;

function Bars({ title, sizes }: { title: string; sizes: Size[] }): React.ReactElement {
  const most = Math.max(1, ...sizes.map(whole));
  const [shown, setShown] = useState(8);
  return (
    <section className="card stack" style={{ gap: 8 }}><h2>{title}</h2>
      {sizes.length === 0 && <p className="soft small">None.</p>}
      {sizes.slice(0, shown).map((one) => (
        <div key={one.name}><div className="row" style={{ gap: 12, flexWrap: "nowrap" }}><span className="grow short" title={visible(one.name)}>{visible(one.name)}</span><span className="num">{size(whole(one))}</span><span className="num soft small">{several(one.chunks, "chunk")}</span></div>
          <div className="bar"><i style={{ width: `${(100 * whole(one)) / most}%` }} /></div></div>))}
      {sizes.length > shown && <button className="plain" onClick={() => setShown(shown + 40)}>Show more of {count(sizes.length)}</button>}
    </section>
  );
}

function DryRunForm({ route, what }: { route: Route; what: "expire" | "collect" }): React.ReactElement {
  const [text, setText] = useState("30d");
  const [age, setAge] = useState<string | null>(null);
  const asked = useAnswer<DryRun>(age === null ? null : inPlace(route.place, `dry-run/${what}`), { repository: route.repository, older_than: age });
  return (
    <section className="card stack" style={{ gap: 10 }}><h2>{what === "expire" ? "What an expiry would take out of the history" : "What a collection would delete"}</h2>
      <form className="row" onSubmit={(event) => { event.preventDefault(); setAge(text); }}><label>older than <input value={text} size={8} onChange={(event) => setText(event.target.value)} /></label><button>Dry run</button><span className="soft small">nothing is changed</span></form>
      {age !== null && <Answered asked={asked}>{(found) => (
        <div className="stack small" style={{ gap: 6 }}>
          <p className="soft">Written before {exact(found.older_than)}:</p>
          <table><tbody>{found.lines.map(([name, many, bytes]) => <tr key={name}><td>{name}</td><td className="num">{count(many)}</td><td className="num">{bytes ? size(bytes) : ""}</td></tr>)}
            {found.refs.map(([name, kept, outcome]) => <tr key={name}><td>{name}</td><td className="num">{several(kept, "snapshot")} kept</td><td className="num">{outcome}</td></tr>)}</tbody></table>
        </div>)}</Answered>}
    </section>
  );
}

export function MaintenanceView({ route }: { route: Route }): React.ReactElement {
  const { place, repository } = route;
  const sizes = useAnswer<Sizes>(inPlace(place, "sizes"), { repository });
  const [checking, setChecking] = useState(false);
  const verified = useAnswer<Verified>(checking ? inPlace(place, "verify") : null, { repository });
  return (
    <div className="stack">
      <Answered asked={sizes}>{(found) => {
        const bytes = found.files.reduce((sum, one) => sum + one.bytes, 0), loose = found.files.reduce((sum, one) => sum + one.unneeded_bytes, 0);
        return (
          <div className="stack">
            <section className="card stack"><div className="figures"><div><b>{size(bytes)}</b><span className="soft small">stored</span></div><div><b>{size(loose)}</b><span className="soft small">unneeded, waiting to be collected</span></div><div><b>{count(found.snapshots)}</b><span className="soft small">snapshots</span></div></div>
              <div className="scroll"><table style={{ maxWidth: 860 }}><thead><tr><th>kind</th><th className="num">files</th><th className="num">size</th><th className="num">unneeded files</th><th className="num">unneeded size</th></tr></thead>
                <tbody>{found.files.map((one) => <tr key={one.name}><td>{one.name}</td><td className="num">{count(one.count)}</td><td className="num">{size(one.bytes)}</td><td className="num">{count(one.unneeded)}</td><td className="num">{size(one.unneeded_bytes)}</td></tr>)}</tbody></table></div></section>
            <div className="three"><Bars title="By array" sizes={found.arrays} /><Bars title="By branch" sizes={found.branches} /><Bars title="By tag" sizes={found.tags} /><Bars title="By age: the last version of each month" sizes={found.ages} /></div>
          </div>);
      }}</Answered>
      <div className="three"><DryRunForm route={route} what="expire" /><DryRunForm route={route} what="collect" />
        <section className="card stack" style={{ gap: 10 }}><h2>Is everything there?</h2><div className="row"><button onClick={() => setChecking(true)} disabled={checking}>Verify now</button><span className="soft small">reads the metadata of all versions</span></div>
          {checking && <Answered asked={verified}>{(found) => (
            <div className="stack small" style={{ gap: 6 }}><p><span className={`badge ${found.ok ? "added" : "removed"}`}>{found.ok ? "no errors" : "errors found"}</span></p>
              <p className="soft">Checked {Object.entries(found.checked).map(([name, many]) => `${count(many)} ${name.replace(/_/g, " ")}`).join(", ")}.</p>
              {found.findings.map((one, at) => <p key={at}><span className={`badge ${one.severity === "error" ? "removed" : "changed"}`}>{one.severity}</span> <b>{one.where}</b>: {one.what} <span className="soft">{one.remedy}</span></p>)}</div>)}</Answered>}
        </section></div>
    </div>
  );
}
