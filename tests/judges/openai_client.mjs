// The npm package `openai` as a judge: node openai_client.mjs URL, against `cherenkov serve demo`.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const paris = "The capital of France is Paris.";

const answer = await client.chat.completions.create({ model: "demo", messages });
assert.equal(answer.choices[0].message.content, paris);
assert.equal(answer.usage.total_tokens, 31);

let said = "";
for await (const chunk of await client.chat.completions.create({ model: "demo", messages, stream: true })) {
  said += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(said, paris);

const final = await client.chat.completions.stream({ model: "demo", messages }).finalChatCompletion();
assert.equal(final.choices[0].message.content, paris);

const controller = new AbortController();
const stream = await client.chat.completions.create({ model: "demo", messages, stream: true }, { signal: controller.signal });
for await (const _ of stream) { controller.abort(); break; }
const under_way = async () => (await (await fetch(`${process.argv[2]}/v1/requests`)).json()).data.length;
for (let i = 0; (await under_way()) && i < 500; i++) await new Promise((done) => setTimeout(done, 20));
assert.equal(await under_way(), 0);

await assert.rejects(client.chat.completions.create({ model: "gpt-4o", messages }), { status: 404, code: "model_not_found" });
console.log("npm openai: creates, streams, aborts, is refused");
