// The answers of the server, as `models.py` describes them, and how they are asked for.

export type Place = { id: string; title: string; location: string };
export type Home = { places: Place[]; host: "airflow" | "standalone"; version: string };
export type Maker = { dag_id: string; run_id: string; task_id: string; map_index: number; page: string | null };
export type Touched = { arrays: number; groups: number; chunks: number; added: number; removed: number };
export type Commit = {
  id: string; parent_id: string | null; written_at: string; message: string; branches: string[]; tags: string[];
  maker: Maker | null; touched: Touched | null; rebases: number; metadata: Record<string, unknown>;
};
export type Refs = { branches: Record<string, string>; tags: Record<string, string>; more_branches: number; more_tags: number };
export type HistoryPage = { commits: Commit[]; cursor: string | null; examined: number; examined_to: string | null };
export type Summary = {
  path: string; location: string; generation: string; head: Commit | null; branches: number; tags: number; arrays: number;
  groups: number; references: number; logical_bytes: number | null; manifest_bytes: number; checks_passed: boolean | null;
};
export type MaintenanceRun = { what: "verify" | "collect" | "expire"; at: string; ok: boolean; summary: string; page: string | null };
export type Health = {
  maintenance: MaintenanceRun[]; failed_lately: number | null; stored_bytes: number | null; garbage_bytes: number | null; commits_lately: number | null;
  rebased_lately: number | null; rebases_lately: number | null; missing_labels: Record<string, number> | null;
};
export type Mark = "added" | "changed" | "removed" | "moved";
export type TreeNode = {
  path: string; name: string; type: "group" | "array"; shape: number[] | null; chunk_shape: number[] | null;
  data_type: string | null; dimension_names: (string | null)[] | null; mark: Mark | null; chunks_changed: number;
  marks_below: number; children: number;
};
export type TreePage = { snapshot_id: string; against: string | null; path: string; nodes: TreeNode[]; total: number; marked: number };
export type SnapshotPage = {
  commit: Commit; against: string | null; added: number; changed: number; removed: number; moved: number; chunks: number;
  unknown: string | null; arrays: TreeNode[]; checks: Record<string, string>[]; manifests: number; manifest_bytes: number;
};
export type Axis = { name: string; length: number; chunk: number; chunks: number; units: string | null; long_name: string | null; coordinate: string | null };
export type ArrayFacts = {
  snapshot_id: string; path: string; data_type: string; axes: Axis[]; fill_value: string; codecs: Record<string, unknown>[];
  attributes: Record<string, unknown>; logical_bytes: number;
  chunks: { inline: number; native: number; virtual: number; missing: number; stored_bytes: number } | null;
  chunks_unknown: string | null; drawable: "image" | "line" | "table" | "value" | "none";
};
export type ChunkMap = {
  snapshot_id: string; against: string | null; rows: number; columns: number; row_axis: string | null; column_axis: string | null;
  grid: number[]; present: string; changed: string; coverage: number; chunks: number; chunks_changed: number;
};
export type Statistics = { count: number; missing: number; minimum: number | null; maximum: number | null; mean: number | null; deviation: number | null };
export type PictureAxis = { name: string; units: string | null; indices: number[]; labels: string[] };
export type Picture = {
  snapshot_id: string; path: string; kind: "image" | "line" | "table" | "value"; rows: PictureAxis | null; columns: PictureAxis | null;
  fixed: Record<string, string>; values: string; texts: string[]; statistics: Statistics; units: string | null; long_name: string | null;
  chunks_read: number; chunks_total: number; sampled: boolean;
};
export type Comparison = { left: Picture; right: Picture; difference: Picture | null; reason: string | null };
export type Cell = {
  value: string; index: number[]; labels: Record<string, string>; chunk: number[]; kind: string; file: string | null;
  offset: number | null; length: number | null; checksum: string | null;
};
export type Size = { name: string; chunks: number; native_bytes: number; inline_bytes: number; virtual_bytes: number };
export type Sizes = {
  files: { name: string; count: number; bytes: number; unneeded: number; unneeded_bytes: number }[];
  branches: Size[]; tags: Size[]; arrays: Size[]; ages: Size[]; snapshots: number;
};
export type DryRun = { what: string; older_than: string; lines: [string, number, number][]; refs: [string, number, string][] };
export type Verified = { ok: boolean; checked: Record<string, number>; findings: Record<string, string>[] };
export type Coverage = { dim: string; wanted: number; present: [string, string][]; missing: string[]; missing_total: number; shared: boolean };

export class Problem extends Error {
  constructor(readonly status: number, message: string) { super(message); }
}

/** Where the server is: beside the page, or where Airflow mounted it. */
let base = ".";
export function setBase(address: string): void { base = address.replace(/\/$/, ""); }
export function staticFile(name: string): string { return `${base}/static/${name}`; }

export type Query = Record<string, string | number | boolean | null | undefined>;

export async function ask<T>(path: string, query: Query, signal?: AbortSignal): Promise<T> {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") words.set(name, String(value));
  }
  const answer = await fetch(`${base}/api/${path}?${words}`, { signal, headers: { Accept: "application/json", ...bearer() } });
  if (answer.ok) return (await answer.json()) as T;
  throw new Problem(answer.status, await explain(answer));
}

/** Airflow 3.0 keeps the login in the storage of the page; later releases in a cookie that is sent anyway. */
function bearer(): Record<string, string> {
  try {
    const token = localStorage.getItem("token")?.replace(/^"|"$/g, "");
    return token && /^[\w-]+\.[\w-]+\.[\w-]+$/.test(token) ? { Authorization: `Bearer ${token}` } : {};
  } catch { return {}; }
}

async function explain(answer: Response): Promise<string> {
  if (answer.status === 401) return "You are not logged in, or your login has expired. Reload the page to log in again.";
  if (answer.status === 403) return "You may not read this connection. Ask whoever administers Airflow for the permission.";
  try {
    const body = await answer.json();
    if (typeof body.message === "string") return body.message;
    if (typeof body.detail === "string") return body.detail;
    if (Array.isArray(body.detail)) return body.detail.map((one: { msg?: string; loc?: unknown[] }) => `${one.loc?.at(-1)}: ${one.msg}`).join("; ");
  } catch { /* not JSON: said below */ }
  return `The server answered ${answer.status} ${answer.statusText}.`;
}

export const inPlace = (place: string, view: string): string => `places/${encodeURIComponent(place)}/${view}`;

export function floats(text: string): Float32Array {
  const bytes = octets(text);
  return new Float32Array(bytes.buffer, 0, bytes.length / 4);
}

export function octets(text: string): Uint8Array<ArrayBuffer> {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  return bytes;
}
