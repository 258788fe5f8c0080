// The official openai client for node over every feature, against the server at TIDEGATE_URL.

import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import OpenAI from "openai";

const { TIDEGATE_URL, TIDEGATE_KEY, TIDEGATE_MODEL: model, TIDEGATE_PLACES } = process.env;
const client = new OpenAI({ baseURL: `${TIDEGATE_URL}/v1`, apiKey: TIDEGATE_KEY, maxRetries: 0 });

const user = (content) => [{ role: "user", content }];
const messages = user("What is the weather in Paris?");
const greedy = { model, temperature: 0, max_tokens: 16 };
const long = { model, prompt: "Once", max_tokens: 1500, ignore_eos: true };

const animal = {
  type: "object",
  properties: { kind: { enum: ["cat", "dog", "fox"] }, legs: { enum: [2, 4] }, tame: { type: "boolean" } },
  required: ["kind", "legs", "tame"],
  additionalProperties: false,
};
const animalFormat = { type: "json_schema", json_schema: { name: "animal", schema: animal, strict: true } };
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city",
    parameters: {
      type: "object",
      properties: { city: { type: "string", maxLength: 12 }, unit: { enum: ["C", "F"] } },
      required: ["city", "unit"],
      additionalProperties: false,
    },
  },
};
const named = { type: "function", function: { name: "get_weather" } };

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const textOf = (chunks) =>
  chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.text ?? choice.delta.content ?? "").join("");

async function refusal(promise, type) {
  try {
    await promise;
  } catch (error) {
    assert.ok(error instanceof type, `${error}`);
    return error;
  }
  assert.fail("it was not refused");
}

function checkAnimal(text) {
  const found = JSON.parse(text);
  assert.deepEqual(Object.keys(found).sort(), ["kind", "legs", "tame"]);
  assert.ok(animal.properties.kind.enum.includes(found.kind));
}

function checkWeather(text) {
  const found = JSON.parse(text);
  assert.deepEqual(Object.keys(found).sort(), ["city", "unit"]);
  assert.ok(["C", "F"].includes(found.unit));
}

after(() => client.models.list()); // the server is still there

describe("models", () => {
  test("are listed and found", async () => {
    const ids = (await collect(await client.models.list())).map((card) => card.id);
    assert.deepEqual(ids, [model]);
    assert.equal((await client.models.retrieve(model)).id, model);
    const error = await refusal(client.models.retrieve("gpt-4"), OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
  });
});

describe("answers", () => {
  test("chat, streamed and plain, is the same text", async () => {
    const plain = await client.chat.completions.create({ ...greedy, messages });
    const chunks = await collect(
      await client.chat.completions.create({
        ...greedy, messages, stream: true, stream_options: { include_usage: true },
      }),
    );
    const last = chunks.pop();
    assert.equal(textOf(chunks), plain.choices[0].message.content);
    assert.deepEqual(last.choices, []);
    assert.deepEqual(last.usage.completion_tokens, plain.usage.completion_tokens);
    assert.ok(chunks.every((chunk) => chunk.usage === null && chunk.id === last.id));
    const reasons = chunks.map((chunk) => chunk.choices[0].finish_reason);
    assert.equal(reasons.pop(), plain.choices[0].finish_reason);
    assert.ok(reasons.every((reason) => reason === null));
    assert.equal(chunks[0].choices[0].delta.role, "assistant");
  });

  test("completions, streamed and plain, of several prompts", async () => {
    const options = { ...greedy, prompt: ["The capital of France is", "Two plus two is"] };
    const plain = await client.completions.create(options);
    const texts = ["", ""];
    for await (const chunk of await client.completions.create({ ...options, stream: true })) {
      for (const choice of chunk.choices) texts[choice.index] += choice.text;
    }
    assert.deepEqual(plain.choices.map((choice) => choice.text), texts);
    assert.match(texts[0], /Paris/);
  });

  test("token ids as a prompt", async () => {
    const answer = await client.completions.create({ ...greedy, prompt: [504, 3575, 282, 4649, 314] });
    assert.equal(answer.usage.prompt_tokens, 5);
  });

  test("n answers, each with its index and end", async () => {
    const options = { model, messages, n: 3, temperature: 1, seed: 7, max_tokens: 8 };
    const plain = await client.chat.completions.create(options);
    assert.deepEqual(plain.choices.map((choice) => choice.index), [0, 1, 2]);
    const ends = [0, 0, 0];
    for await (const chunk of await client.chat.completions.create({ ...options, stream: true })) {
      for (const choice of chunk.choices) if (choice.finish_reason) ends[choice.index] += 1;
    }
    assert.deepEqual(ends, [1, 1, 1]);
  });

  test("a seed repeats an answer", async () => {
    const ask = async (seed) =>
      (await client.completions.create({ model, prompt: "A fox", temperature: 1.2, max_tokens: 16, seed })).choices[0].text;
    assert.equal(await ask(7), await ask(7));
    assert.notEqual(await ask(7), await ask(8));
  });

  test("a stop string is not shown", async () => {
    const options = { ...greedy, max_tokens: 40, prompt: "Count: 1, 2, 3, 4," };
    const free = (await client.completions.create(options)).choices[0].text;
    const stop = free.slice(5, 9);
    const cut = await client.completions.create({ ...options, stop: [stop, "never seen"] });
    const chunks = await collect(await client.completions.create({ ...options, stop, stream: true }));
    assert.equal(cut.choices[0].text, free.slice(0, free.indexOf(stop)));
    assert.equal(textOf(chunks), cut.choices[0].text);
    assert.equal(cut.choices[0].finish_reason, "stop");
  });

  test("log probabilities join to the text", async () => {
    const chat = await client.chat.completions.create({ ...greedy, messages, logprobs: true, top_logprobs: 3 });
    const entries = chat.choices[0].logprobs.content;
    assert.equal(Buffer.from(entries.flatMap((entry) => entry.bytes)).toString(), chat.choices[0].message.content);
    assert.ok(entries.every((entry) => entry.top_logprobs.length === 3 && entry.logprob <= 0));
    const completion = await client.completions.create({ ...greedy, prompt: "The sea", logprobs: 2 });
    assert.equal(completion.choices[0].logprobs.tokens.join(""), completion.choices[0].text);
  });

  test("cached tokens are told", async () => {
    const prompt = "The moon and the tides and the wind. ".repeat(12);
    await client.completions.create({ ...greedy, max_tokens: 1, prompt });
    const { usage } = await client.completions.create({ ...greedy, max_tokens: 1, prompt });
    assert.ok(usage.prompt_tokens_details.cached_tokens > 0);
    assert.ok(usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens);
  });

  test("the runner that gathers a stream takes ours", async () => {
    const options = { ...greedy, max_tokens: 60, messages: user("Name three primary colors.") };
    const runner = client.chat.completions.stream(options);
    let pieces = "";
    runner.on("content", (delta) => (pieces += delta));
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].message.content, pieces);
    const plain = await client.chat.completions.create(options);
    assert.equal(plain.choices[0].message.content, pieces);
  });

  test("what vLLM has beyond OpenAI, and what is harmless", async () => {
    const answer = await client.completions.create({
      ...greedy, max_tokens: 5, prompt: "Hi", ignore_eos: true, min_tokens: 2, top_k: 5, min_p: 0.01, repetition_penalty: 1.1,
    });
    assert.equal(answer.usage.completion_tokens, 5);
    const harmless = { user: "u", metadata: { a: "b" }, safety_identifier: "s", prompt_cache_key: "k", store: false };
    assert.ok((await client.chat.completions.create({ ...greedy, messages, ...harmless })).choices[0].message.content);
  });

  test("headers are within reach", async () => {
    const { data, response, request_id } = await client.chat.completions
      .create({ ...greedy, messages, max_tokens: 10 ** 6, stop: ["."] }, { headers: { "x-request-id": "mine-8" } })
      .withResponse();
    assert.equal(request_id, "mine-8");
    assert.ok(Number(response.headers.get("x-tidegate-max-tokens-clamped")) < 2048);
    assert.ok(data.system_fingerprint);
  });
});

describe("errors", () => {
  for (const [fields, param] of [
    [{ temperature: 3 }, "temperature"],
    [{ n: 5_000_000 }, "n"],
    [{ stop: Array(5).fill("x") }, "stop"],
    [{ logit_bias: { 999999: 1 } }, "logit_bias"],
    [{ tempreature: 1 }, "tempreature"],
  ]) {
    test(`a bad ${param} is named`, async () => {
      const error = await refusal(
        client.chat.completions.create({ ...greedy, messages, ...fields }), OpenAI.BadRequestError,
      );
      assert.equal(error.param, param);
      assert.equal(error.type, "invalid_request_error");
      assert.ok(error.requestID);
    });
  }

  test("each kind has its own type", async () => {
    const ask = (fields, who = client) => who.completions.create({ ...greedy, prompt: "Hi", ...fields });
    const tooLong = await refusal(ask({ prompt: "word ".repeat(4000) }), OpenAI.BadRequestError);
    assert.equal(tooLong.code, "context_length_exceeded");
    assert.equal((await refusal(ask({ model: "gpt-4" }), OpenAI.NotFoundError)).code, "model_not_found");
    const stranger = client.withOptions({ apiKey: "wrong" });
    assert.equal((await refusal(ask({}, stranger), OpenAI.AuthenticationError)).code, "invalid_api_key");
    assert.equal((await refusal(ask({ suffix: "x" }), OpenAI.BadRequestError)).param, "suffix");
    assert.equal((await refusal(ask({ prompt: "x".repeat(9 * 2 ** 20) }), OpenAI.APIError)).status, 413);
  });

  async function occupied(work) {
    const streams = [];
    for (let i = 0; i < 2; i++) {
      streams.push(await client.completions.create({ ...long, max_tokens: 150, n: TIDEGATE_PLACES / 2, stream: true }));
    }
    const release = () => streams.forEach((stream) => stream.controller.abort());
    try {
      return await work(release);
    } finally {
      release();
    }
  }

  test("a full house is a rate limit with a hint, and the client comes back by it", async () => {
    await occupied(async (release) => {
      const error = await refusal(client.completions.create({ ...greedy, prompt: "Hi" }), OpenAI.RateLimitError);
      assert.equal(error.code, "server_busy");
      assert.ok(Number(error.headers.get("retry-after")) >= 1);
      setTimeout(release, 300);
      const started = performance.now();
      const patient = client.withOptions({ maxRetries: 3 });
      assert.ok((await patient.completions.create({ ...greedy, prompt: "Hi" })).choices[0].text);
      assert.ok(performance.now() - started >= 1000);
    });
  });
});

describe("clients that leave", () => {
  test("in mid-stream, by break and by abort", async () => {
    for await (const chunk of await client.completions.create({ ...long, stream: true })) {
      assert.ok(chunk.choices);
      break;
    }
    const stream = await client.completions.create({ ...long, stream: true });
    stream.controller.abort();
  });

  test("after a timeout", async () => {
    await refusal(client.completions.create(long, { timeout: 300 }), OpenAI.APIConnectionTimeoutError);
  });

  test("by an abort signal", async () => {
    const controller = new AbortController();
    setTimeout(() => controller.abort(), 200);
    await refusal(client.completions.create(long, { signal: controller.signal }), OpenAI.APIUserAbortError);
  });
});

describe("structured output", () => {
  const options = { ...greedy, max_tokens: 100, messages };

  test("parse gives the object", async () => {
    const answer = await client.chat.completions.parse({ ...options, response_format: animalFormat });
    checkAnimal(answer.choices[0].message.content);
    assert.equal(answer.choices[0].finish_reason, "stop");
  });

  test("streamed", async () => {
    const runner = client.chat.completions.stream({ ...options, response_format: animalFormat });
    checkAnimal((await runner.finalChatCompletion()).choices[0].message.content);
  });

  test("JSON mode", async () => {
    const [choice] = (
      await client.chat.completions.create({ ...options, max_tokens: 40, response_format: { type: "json_object" } })
    ).choices;
    assert.match(choice.message.content, /^\s*\{/);
    if (choice.finish_reason === "stop") JSON.parse(choice.message.content);
  });

  test("a wrong schema is a bad request", async () => {
    const wrong = { type: "json_schema", json_schema: { name: "x", schema: { type: "nonsense" } } };
    const asked = client.chat.completions.create({ ...options, response_format: wrong });
    assert.match((await refusal(asked, OpenAI.BadRequestError)).param, /^response_format/);
  });

  test("a choice is one of its texts", async () => {
    const asked = { ...options, structured_outputs: { choice: ["sunny", "rainy"] } };
    const answer = await client.chat.completions.create(asked);
    assert.ok(["sunny", "rainy"].includes(answer.choices[0].message.content));
  });
});

describe("tools", () => {
  const options = { ...greedy, max_tokens: 150, messages, tools: [weather] };

  for (const tool_choice of ["required", named]) {
    test(`${JSON.stringify(tool_choice)} calls it`, async () => {
      const [choice] = (await client.chat.completions.create({ ...options, tool_choice })).choices;
      if (tool_choice === "required") assert.equal(choice.finish_reason, "tool_calls");
      const [call] = choice.message.tool_calls;
      assert.ok(call.id);
      assert.equal(call.function.name, "get_weather");
      checkWeather(call.function.arguments);
    });
  }

  test("streamed calls accumulate", async () => {
    const calls = [];
    const reasons = [];
    for await (const chunk of await client.chat.completions.create({ ...options, tool_choice: "required", stream: true })) {
      for (const choice of chunk.choices) {
        if (choice.finish_reason) reasons.push(choice.finish_reason);
        for (const part of choice.delta.tool_calls ?? []) {
          const call = (calls[part.index] ??= { ids: new Set(), name: "", text: "" });
          if (part.id) call.ids.add(part.id);
          call.name += part.function.name ?? "";
          call.text += part.function.arguments ?? "";
        }
      }
    }
    assert.deepEqual(reasons, ["tool_calls"]);
    assert.ok(calls.length > 0);
    for (const call of calls) {
      assert.equal(call.ids.size, 1);
      assert.equal(call.name, "get_weather");
      checkWeather(call.text);
    }
  });

  test("the runner gathers them too", async () => {
    const final = await client.chat.completions.stream({ ...options, tool_choice: "required" }).finalChatCompletion();
    checkWeather(final.choices[0].message.tool_calls[0].function.arguments);
  });

  test("the conversation goes on", async () => {
    const [first] = (await client.chat.completions.create({ ...options, tool_choice: named })).choices;
    const told = { role: "tool", tool_call_id: first.message.tool_calls[0].id, content: '{"degrees": 21}' };
    const history = [...messages, first.message, told];
    const [second] = (
      await client.chat.completions.create({ ...options, max_tokens: 12, messages: history, tool_choice: "none" })
    ).choices;
    assert.ok(second.message.content);
    assert.ok(!second.message.tool_calls?.length);
  });
});

describe("the rest", () => {
  test("echo", async () => {
    const prompt = "Line one\nLine 2: 3.14159,";
    const [choice] = (await client.completions.create({ ...greedy, prompt, echo: true, logprobs: 1 })).choices;
    assert.ok(choice.text.startsWith(prompt));
    assert.equal(choice.logprobs.tokens.join(""), choice.text);
    assert.equal(choice.logprobs.token_logprobs[0], null);
    const [scored] = (await client.completions.create({ ...greedy, max_tokens: 0, prompt, echo: true, logprobs: 1 })).choices;
    assert.equal(scored.text, prompt);
    assert.equal(scored.finish_reason, "length");
  });

  test("prompt log probabilities", async () => {
    const answer = await client.completions.create({ ...greedy, prompt: "The sea is blue.", prompt_logprobs: 1 });
    const entries = answer.choices[0].prompt_logprobs ?? answer.prompt_logprobs;
    assert.equal(entries.length, answer.usage.prompt_tokens);
    assert.equal(entries[0], null);
  });

  for (const service_tier of ["auto", "default", "flex", "priority"]) {
    test(`service tier ${service_tier}`, async () => {
      const answer = await client.chat.completions.create({ ...greedy, messages, service_tier });
      assert.ok(answer.choices[0].message.content);
    });
  }

  test("store", async () => {
    const answer = await client.chat.completions.create({ ...greedy, messages, store: true });
    assert.ok(answer.choices[0].message.content);
  });

  test("usage with every chunk", async () => {
    const stream_options = { include_usage: true, continuous_usage_stats: true };
    const chunks = await collect(
      await client.completions.create({ ...greedy, prompt: "Hi", stream: true, stream_options }),
    );
    const counts = chunks.map((chunk) => chunk.usage.completion_tokens);
    assert.deepEqual(counts, [...counts].sort((a, b) => a - b));
  });
});

describe("responses", () => {
  const options = { model, temperature: 0, max_output_tokens: 16, input: "Name three primary colors." };
  const deltas = (events) =>
    events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join("");
  const numbers = (events) => events.map((event) => event.sequence_number);

  test("streamed is what is told plain", async () => {
    const plain = await client.responses.create(options);
    const events = await collect(await client.responses.create({ ...options, stream: true }));
    assert.equal(deltas(events), plain.output_text);
    assert.deepEqual(numbers(events), events.map((_, index) => index));
    assert.equal(events.at(-1).response.output_text ?? deltas(events), plain.output_text);
  });

  test("the runner that gathers a stream takes ours", async () => {
    const stream = client.responses.stream(options);
    const events = await collect(stream);
    assert.equal((await stream.finalResponse()).output_text, deltas(events));
  });

  test("a turn follows another, and its items are told", async () => {
    const first = await client.responses.create(options);
    const second = await client.responses.create({
      ...options, max_output_tokens: 4, input: "And?", previous_response_id: first.id,
    });
    assert.ok(second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens);
    const items = await collect(client.responses.inputItems.list(second.id, { order: "asc", limit: 2 }));
    assert.deepEqual(items.map((item) => item.role), ["user", "assistant", "user"]);
  });

  test("a stream that broke goes on, and loses nothing", async () => {
    const seen = [];
    for await (const event of await client.responses.create({ ...options, stream: true })) {
      seen.push(event);
      if (seen.length === 6) break;
    }
    const { id } = seen[0].response;
    const rest = await client.responses.retrieve(id, { stream: true, starting_after: seen.at(-1).sequence_number });
    seen.push(...(await collect(rest)));
    assert.deepEqual(numbers(seen), seen.map((_, index) => index));
    assert.equal(deltas(seen), (await client.responses.retrieve(id)).output_text);
  });

  test("in the background, cancelled, deleted", async () => {
    const running = await client.responses.create({ ...options, max_output_tokens: 1500, ignore_eos: true, background: true });
    await refusal(client.responses.create({ ...options, previous_response_id: running.id }), OpenAI.ConflictError);
    assert.equal((await client.responses.cancel(running.id)).status, "cancelled");
    await client.responses.delete(running.id);
    await refusal(client.responses.retrieve(running.id), OpenAI.NotFoundError);
  });

  test("a form is parsed, a tool is called", async () => {
    const format = { type: "json_schema", name: "animal", schema: animal, strict: true };
    const formed = await client.responses.parse({ ...options, max_output_tokens: 60, text: { format } });
    checkAnimal(formed.output_text);
    const tools = [{ type: "function", ...weather.function, strict: true }];
    const asked = { ...options, max_output_tokens: 100, tools, tool_choice: { type: "function", name: "get_weather" } };
    const [call] = (await client.responses.create(asked)).output;
    assert.equal(call.type, "function_call");
    checkWeather(call.arguments);
  });
});
