// The history as lanes. Every commit has at most one parent, so lines only ever join going down; a
// lane that became free stays empty until another line takes it, and every line is straight. Pure.
import type { Commit } from "./api";

export type Row = { lane: number; through: number[]; joining: number[]; goesOn: boolean; comes: boolean };

/** A lane that nothing goes through yet and nobody else may take. */
const KEPT = "";

/** `first` is the commit whose line has the first lane: the head of `main`. */
export function lanes(commits: readonly Commit[], first?: string): { rows: Row[]; width: number } {
  const waiting: (string | null)[] = commits.some((one) => one.id === first) ? [KEPT] : [];
  const rows: Row[] = [];
  let width = 1;
  for (const commit of commits) {
    const here = waiting.flatMap((id, lane) => (id === commit.id ? [lane] : []));
    let lane = commit.id === first ? 0 : (here[0] ?? waiting.indexOf(null));
    if (lane < 0) lane = waiting.push(null) - 1;
    for (const other of here) waiting[other] = null;
    const through = waiting.flatMap((id, other) => (id !== null && id !== KEPT && other !== lane ? [other] : []));
    waiting[lane] = commit.parent_id;
    rows.push({ lane, through, joining: here.filter((other) => other !== lane), goesOn: commit.parent_id !== null, comes: here.includes(lane) });
    width = Math.max(width, waiting.length);
    while (waiting.length > 0 && waiting[waiting.length - 1] === null) waiting.pop();
  }
  return { rows, width };
}
