// The history as lanes. Every commit has at most one parent, so lines only ever join going down; a
// lane that became free stays empty until another line takes it, and every line is straight. Pure.
import type { Commit } from "./api";

export type Row = { lane: number; through: number[]; joining: number[]; goesOn: boolean; comes: boolean };

export function lanes(commits: readonly Commit[]): { rows: Row[]; width: number } {
  const waiting: (string | null)[] = [];
  const rows: Row[] = [];
  let width = 1;
  for (const commit of commits) {
    const here = waiting.flatMap((id, lane) => (id === commit.id ? [lane] : []));
    let lane = here[0] ?? waiting.indexOf(null);
    if (lane < 0) lane = waiting.push(null) - 1;
    for (const other of here) waiting[other] = null;
    const through = waiting.flatMap((id, other) => (id !== null ? [other] : []));
    waiting[lane] = commit.parent_id;
    rows.push({ lane, through, joining: here.slice(1), goesOn: commit.parent_id !== null, comes: here.length > 0 });
    width = Math.max(width, waiting.length);
    while (waiting.length > 0 && waiting[waiting.length - 1] === null) waiting.pop();
  }
  return { rows, width };
}
