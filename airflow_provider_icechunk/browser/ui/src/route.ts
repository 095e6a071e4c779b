// Where we are, kept in the part of the address behind `#`: links, the back button and bookmarks
// work the same inside of Airflow's page and alone.
import { useEffect, useState } from "react";

export type Route = { place: string; repository: string; view: string; query: Record<string, string> };

export function parseRoute(hash: string): Route {
  const [path = "", words = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [place = "", repository = "", view = "history"] = path.split("/").map(decode);
  return { place, repository, view, query: Object.fromEntries(new URLSearchParams(words)) };
}

function decode(text: string): string {
  try { return decodeURIComponent(text); } catch { return text; }
}

export function href(place = "", repository = "", view = "", query: Record<string, string | number | null | undefined> = {}): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== null && value !== undefined && value !== "") words.set(name, String(value));
  const path = [place, repository, view].filter((one) => one !== "").map(encodeURIComponent).join("/");
  const asked = words.toString();
  // With the path of the page: Airflow's page has a base address, which a bare `#` would lead to.
  return `${window.location.pathname}${window.location.search}#/${path}${asked ? `?${asked}` : ""}`;
}

export function go(address: string, replace = false): void {
  if (replace) { history.replaceState(history.state, "", address); window.dispatchEvent(new HashChangeEvent("hashchange")); }
  else window.location.hash = address.slice(address.indexOf("#"));
}

export function useRoute(): Route {
  const [route, set] = useState(() => parseRoute(window.location.hash));
  useEffect(() => {
    const changed = () => set(parseRoute(window.location.hash));
    window.addEventListener("hashchange", changed);
    window.addEventListener("popstate", changed);
    return () => { window.removeEventListener("hashchange", changed); window.removeEventListener("popstate", changed); };
  }, []);
  return route;
}
