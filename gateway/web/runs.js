// Answers that are on their way: which lane carries which turn, what their events do to it, and how they go on
// after a broken connection or a reload. A turn's text and the number of the last event in it change together,
// so going on behind that number neither loses nor doubles anything.

import { HttpError } from "/web/access.js";
import { RUNNING } from "/web/chats.js";

const MAX_LANES = 16; // what the server runs side by side on one connection
const WARM_LANE = "warm";
const WARM_AFTER_MS = 20_000;
const RESEND_WITHIN_MS = 60_000;
const LOOK_AGAIN_MS = 1_000;
const UNENDED = new Set(["in_progress", "queued"]);

/** `on.changed(chat, turn)` after each event, `on.ended(chat, turn)` after the last, `on.trouble(sentence)`. */
export class Runs {
  #lanes = new Map(); // lane -> run {chat, turn, lane, sentAt, firstAt}
  #lastLane = new Map(); // by chat
  #warmedAt = new Map(); // by response
  #numLanes = 0;

  constructor(access, chats, settings, on) {
    this.access = access;
    this.chats = chats;
    this.settings = settings;
    this.on = on;
    this.connection = null; // set by whoever makes both
  }

  // ---- what the user does ----

  /** Send a turn, or once connected. */
  start(chat, turn) {
    const fork = chat.branches(turn.parent).length > 1;
    const run = { chat, turn, lane: this.#takeLane(chat, fork), sentAt: performance.now(), firstAt: 0 };
    this.#lanes.set(run.lane, run);
    this.chats.save(chat);
    this.#send(run);
  }

  stop(turn) {
    turn.isStopping = true;
    if (turn.responseId) this.connection.send({ type: "response.cancel", response_id: turn.responseId });
    else if (!this.connection.isOpen) this.#end(this.#runOf(turn), "stopped");
  }

  /** Bring an idle chat's KV up to the device before its next turn. */
  prewarm(chat) {
    const last = chat.path().findLast((turn) => turn.status === "done");
    if (!last?.responseId || chat.running || !this.connection.isOpen) return;
    const before = this.#warmedAt.get(last.responseId) ?? last.endedAt ?? 0;
    if (Date.now() - before < WARM_AFTER_MS) return;
    this.#warmedAt.set(last.responseId, Date.now());
    const settings = this.#settings();
    delete settings.max_output_tokens;
    this.connection.send({ type: "response.create", stream_id: WARM_LANE, ...settings, previous_response_id: last.responseId, input: [], generate: false, store: false });
  }

  // ---- after a break ----

  /** The connection is open (again): go on with everything that runs. */
  resumeAll() {
    this.#numLanes = 0;
    const runs = [...this.#lanes.values()];
    this.#lanes.clear();
    for (const run of runs) {
      run.lane = this.#takeLane(run.chat, true);
      this.#lanes.set(run.lane, run);
    }
    for (const run of runs) this.#send(run);
  }

  /** Take up what ran when the page was closed. */
  adopt(chat) {
    for (const turn of chat.turns.values()) {
      if (!RUNNING.has(turn.status) || this.#runOf(turn)) continue;
      if (!turn.responseId && Date.now() - turn.createdAt > RESEND_WITHIN_MS) {
        turn.status = "failed";
        turn.error = "It was never sent: the page was closed before the server answered.";
        this.chats.save(chat);
        continue;
      }
      const run = { chat, turn, lane: this.#takeLane(chat, true), sentAt: performance.now(), firstAt: 0 };
      this.#lanes.set(run.lane, run);
      if (this.connection.isOpen) this.#send(run);
    }
  }

  /** Of a chat that is deleted: its events are not wanted any more. */
  drop(chat) {
    for (const run of [...this.#lanes.values()]) {
      if (run.chat !== chat) continue;
      if (run.turn.responseId) this.connection.send({ type: "response.cancel", response_id: run.turn.responseId });
      this.#lanes.delete(run.lane);
    }
  }

  follows(chat) {
    return [...this.#lanes.values()].some((run) => run.chat === chat);
  }

  // ---- events ----

  take(event) {
    if (event.stream_id === WARM_LANE) return;
    const run = this.#lanes.get(event.stream_id);
    if (event.type === "error") {
      if (run) this.#fail(run, event);
      else if (event.status !== 404) this.on.trouble(sentence(event)); // what we cancel may have ended by itself
      return;
    }
    if (!run || !Number.isInteger(event.sequence_number)) return;
    const { turn } = run;
    const responseId = event.response?.id ?? turn.responseId;
    if (turn.responseId && responseId !== turn.responseId) return;
    if (event.sequence_number <= turn.sequence) return;
    turn.sequence = event.sequence_number;
    this.#apply(run, event, responseId);
  }

  #apply(run, event, responseId) {
    const { chat, turn } = run;
    const isNew = turn.responseId === null;
    turn.responseId = responseId;
    turn.status = "streaming";
    if (event.type === "response.output_text.delta") {
      this.#first(run);
      turn.answer += event.delta;
    } else if (event.type === "response.reasoning_text.delta") {
      this.#first(run);
      turn.thought += event.delta;
    }
    if (isNew && turn.isStopping) this.stop(turn);
    const status = event.response?.status;
    if (status && !UNENDED.has(status)) this.#finish(run, event.response);
    else {
      this.chats.save(chat, !isNew);
      this.on.changed(chat, turn);
    }
  }

  #first(run) {
    if (run.firstAt) return;
    run.firstAt = performance.now();
    if (run.sentAt && !run.turn.ttftMs) run.turn.ttftMs = run.firstAt - run.sentAt;
  }

  #finish(run, response) {
    const { turn } = run;
    turn.usage = response.usage ?? null;
    const told = (type, part) =>
      (response.output ?? []).filter((item) => item.type === type).flatMap((item) => item.content ?? []).filter((content) => content.type === part).map((content) => content.text).join("");
    turn.answer = told("message", "output_text") || turn.answer;
    turn.thought = told("reasoning", "reasoning_text") || turn.thought;
    const streamedMs = run.firstAt ? performance.now() - run.firstAt : 0;
    const numTokens = turn.usage?.output_tokens ?? 0;
    if (run.sentAt && streamedMs > 0 && numTokens > 1) turn.tokensPerS = ((numTokens - 1) * 1000) / streamedMs;
    if (response.status === "failed") turn.error = response.error?.message ?? "The server failed to answer.";
    else if (response.status === "cancelled" && !turn.isStopping) turn.error = "Stopped: nobody was there to read it for too long.";
    this.#end(run, ending(response, turn));
  }

  #fail(run, event) {
    const hasForgotten = event.error?.code === "previous_response_not_found";
    if (run.turn.responseId) this.#fetchEnd(run);
    else if (hasForgotten && !run.isWhole) {
      run.isWhole = true;
      this.#send(run);
    } else {
      run.turn.error = sentence(event);
      this.#end(run, "failed");
    }
  }

  /** It can be followed no more; perhaps its end is kept. */
  async #fetchEnd(run) {
    try {
      const answer = await this.access.fetch(`/v1/responses/${encodeURIComponent(run.turn.responseId)}`);
      const response = await answer.json();
      if (UNENDED.has(response.status)) setTimeout(() => this.#fetchEnd(run), LOOK_AGAIN_MS);
      else this.#finish(run, response);
    } catch (error) {
      const lost = error instanceof HttpError && error.status === 404;
      run.turn.error = lost ? "The connection broke, and the server has forgotten the rest of this answer." : error.message;
      this.#end(run, "failed");
    }
  }

  #end(run, status) {
    if (!run || this.#lanes.get(run.lane) !== run) return;
    this.#lanes.delete(run.lane);
    const { chat, turn } = run;
    turn.status = status;
    turn.endedAt = Date.now();
    delete turn.isStopping;
    this.chats.save(chat);
    this.on.ended(chat, turn);
  }

  // ---- what goes out ----

  #send(run) {
    const { chat, turn, lane } = run;
    if (turn.responseId) {
      run.sentAt = 0; // what comes at once now says nothing of the pace
      this.connection.send({ type: "response.resume", response_id: turn.responseId, starting_after: turn.sequence, stream_id: lane });
      if (turn.isStopping) this.stop(turn);
      return;
    }
    const { responseId, said } = chat.before(turn, run.isWhole);
    this.connection.send({
      type: "response.create",
      stream_id: lane,
      ...this.#settings(),
      input: [...said, { type: "message", role: "user", content: turn.text }],
      ...(responseId && { previous_response_id: responseId }),
      store: true,
    });
  }

  #settings() {
    const { model, system, temperature, maxTokens } = this.settings;
    return {
      ...(model && { model }),
      ...(system && { instructions: system }),
      ...(temperature !== null && { temperature }),
      ...(maxTokens && { max_output_tokens: maxTokens }),
      truncation: "auto",
    };
  }

  #runOf(turn) {
    return [...this.#lanes.values()].find((run) => run.turn === turn);
  }

  /** The chat's own if that is free and it is no fork; else one that is free, else a new one. */
  #takeLane(chat, fork) {
    const own = this.#lastLane.get(chat.id);
    const names = Array.from({ length: this.#numLanes }, (_, number) => `lane-${number + 1}`);
    const free = names.filter((name) => !this.#lanes.has(name) && !(fork && name === own));
    let lane = !fork && free.includes(own) ? own : undefined;
    if (!lane && this.#numLanes < MAX_LANES - 1) lane = `lane-${++this.#numLanes}`;
    lane ??= free[0] ?? `lane-${++this.#numLanes}`;
    this.#lastLane.set(chat.id, lane);
    return lane;
  }
}

function ending(response, turn) {
  if (response.status === "completed") return "done";
  if (response.status === "failed") return "failed";
  if (response.status === "cancelled" || turn.isStopping) return "stopped";
  return response.incomplete_details?.reason === "max_output_tokens" ? "cut" : "stopped";
}

/** What an error event says. */
function sentence(event) {
  return (event.error ?? event).message || "The server could not do that.";
}
