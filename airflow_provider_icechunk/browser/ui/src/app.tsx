import React, { useEffect } from "react";
import { ArrayView, CompareView } from "./array";
import { History } from "./history";
import { HomeView, remember } from "./home";
import { ContentsView, SnapshotView } from "./snapshot";
import { href, type Route, useRoute } from "./route";
import { MaintenanceView } from "./maintenance";

declare const SOURCES: string;

const TABS: [string, string][] = [["history", "History"], ["contents", "Contents"], ["maintenance", "Maintenance"]];
const BELONGS: Record<string, string> = { snapshot: "history", array: "contents", compare: "contents" };

function Logo(): React.ReactElement {
  return <svg className="logo" viewBox="0 0 24 24" fill="none" stroke="currentColor" strokeWidth="1.7" strokeLinejoin="round" aria-hidden="true"><path d="M12 2.5 20.500 7v10L12 21.500 3.500 17V7z" /><path d="M3.500 7 12 11.500 20.500 7M12 11.500v10" /><path d="M7.700 4.800 16.200 9.300v4.500" strokeOpacity=".55" /></svg>;
}

export function App({ hosted = false, start }: { hosted?: boolean; start?: Route }): React.ReactElement {
  const found = useRoute();
  const route = found.place === "" && start ? start : found;
  const { place, repository, view, query } = route;
  const inside = place !== "" && repository !== "";
  useEffect(() => { if (inside) remember({ place, repository }); }, [place, repository]);
  useEffect(() => { if (!hosted) document.title = inside ? `${repository} · Icechunk` : "Icechunk"; }, [repository]);
  return (
    <div className={hosted ? "ick hosted" : "ick"} data-sources={SOURCES}>
      <header><Logo />
        <nav className="crumbs" aria-label="Where you are"><a href={href()}>Icechunk</a>
          {inside && <><span aria-hidden="true">/</span><span className="soft" style={{ fontWeight: 500 }}>{place}</span><span aria-hidden="true">/</span><a style={{ color: "inherit", fontWeight: 650 }} href={href(place, repository, "history")} aria-current="location">{repository === "." ? "(root)" : repository}</a></>}
        </nav></header>
      {inside && <nav className="tabs" aria-label="Views of this repository">{TABS.map(([name, title]) => (
        <a key={name} href={href(place, repository, name, name === "contents" ? { version: query.version } : {})} aria-current={(BELONGS[view] ?? view) === name ? "page" : undefined}>{title}</a>))}</nav>}
      <main>{!inside ? <HomeView /> : <View key={`${place} ${repository}`} route={route} />}</main>
    </div>
  );
}

function View({ route }: { route: Route }): React.ReactElement {
  switch (route.view) {
    case "snapshot": return <SnapshotView route={route} />;
    case "contents": return <ContentsView route={route} />;
    case "array": return <ArrayView route={route} />;
    case "compare": return <CompareView route={route} />;
    case "maintenance": return <MaintenanceView route={route} />;
    default: return <History route={route} />;
  }
}
