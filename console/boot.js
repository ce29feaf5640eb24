// Starts the page with files of one release. The server sends no expiry, so a browser may cache files of an earlier release for
// weeks. So each file is revalidated (the server answers "not modified") before any of them runs.

export const FILES = [
  "index.html",
  "open.html",
  "console.css",
  "boot.js",
  "api.js",
  "dialog.js",
  "dom.js",
  "format.js",
  "json.js",
  "chart.js",
  "main.js",
  "reader.js",
  "session.js",
  "stream.js",
  "timeline.js",
  "model/batches.js",
  "model/beats.js",
  "model/draft.js",
  "model/events.js",
  "model/followed.js",
  "model/jobs.js",
  "model/members.js",
  "model/queue.js",
  "model/returned.js",
  "model/series.js",
  "model/timeline.js",
  "views/batch.js",
  "views/batches.js",
  "views/failures.js",
  "views/health.js",
  "views/job.js",
  "views/jobs.js",
  "views/login.js",
  "views/output.js",
  "views/parts.js",
  "views/queue.js",
  "views/running.js",
  "views/start.js",
];

async function begin() {
  if (window.top !== window.self) {
    // A policy in the page itself cannot forbid frames, and in a frame another page could steal clicks.
    document.body.textContent = "This page does not work within a frame.";
    return;
  }
  await Promise.allSettled(FILES.map((name) => fetch(new URL(name, import.meta.url), { cache: "no-cache" })));
  const { start } = await import("./main.js");
  await start(document.body);
}

begin();
