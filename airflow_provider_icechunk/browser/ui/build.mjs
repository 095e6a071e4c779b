// Builds the page twice: `page.js` with React inside, and `plugin.js` for Airflow, with Airflow's.
// Both carry the digest of the sources, which a test compares with the sources themselves.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { copyFileSync, readFileSync, readdirSync } from "node:fs";

const names = ["build.mjs", "package.json", "page.html", "browser.css", "icon.svg", "icon-dark.svg",
  ...readdirSync("src").map((name) => `src/${name}`)].sort();
const digest = createHash("sha256");
for (const name of names) digest.update(`${name}\n`).update(readFileSync(name));
const sources = digest.digest("hex");

const host = {
  name: "react-of-the-host",
  setup(made) {
    made.onResolve({ filter: /^react$/ }, () => ({ path: "react", namespace: "host" }));
    made.onLoad({ filter: /.*/, namespace: "host" }, () => ({ contents: "module.exports = globalThis.React;" }));
  },
};
const common = {
  bundle: true, minify: true, format: "esm", target: "es2022", charset: "utf8", legalComments: "eof",
  define: { "process.env.NODE_ENV": '"production"', SOURCES: JSON.stringify(sources) },
  banner: { js: `/* sources ${sources} */` },
};
await build({ ...common, entryPoints: ["src/page.tsx"], outfile: "../static/page.js" });
await build({ ...common, entryPoints: ["src/plugin.tsx"], outfile: "../static/plugin.js", plugins: [host] });
for (const name of ["page.html", "browser.css", "icon.svg", "icon-dark.svg"]) copyFileSync(name, `../static/${name}`);
