/** Follow a calibration to its end. A job lives in one gateway's process, which polls may miss. */

import { ApiError, events, getJson } from "./api.js";

const AGAIN_MS = 400;
const MISSES = 25; // answers of other gateways, or none, in a row, before we give up
const MISSED = ["job_not_found", "unreachable"];

/** Wait a moment. */
function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Whether nothing will change any more. */
export function hasEnded(job) {
  return ["done", "failed", "cancelled"].includes(job.status);
}

/**
 * Tell `changed` of each change of a job, and resolve to the job as it ended.
 *
 * Behind a balancer another gateway may be asked, which knows no such job, and a connection may break
 * off: it is asked again.
 */
export async function follow(job, changed) {
  let misses = 0;
  let last = job;
  while (!hasEnded(last)) {
    try {
      for await (const event of events(`calibrations/jobs/${job.id}/events`, "admin")) {
        misses = 0;
        last = event.job;
        changed(last);
      }
      if (!hasEnded(last)) last = (await getJson(`calibrations/jobs/${job.id}`, "admin")).job;
    } catch (error) {
      if (!(error instanceof ApiError) || !MISSED.includes(error.code) || ++misses > MISSES) throw error;
      await pause(AGAIN_MS);
    }
  }
  return last;
}
