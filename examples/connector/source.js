// A source connector in JavaScript, with nothing but Node's standard library.
//
//   node source.js HOST:PORT INSTANCE STREAM COUNT [COOKIE]
//
// It sends the numbers 1..COUNT, one a message, the number being its id, and ends when all are durable. Killed at any
// moment and started again it goes on where the journal ends. A worker may send it to another one, which has the journal.
'use strict';
const net = require('node:net');
const { createHash } = require('node:crypto');

const [address, instance, streamName, countText, cookie = ''] = process.argv.slice(2);
const count = BigInt(countText);
const NOTHING_SEEN = 2n ** 64n - 1n;
const stream = createHash('sha256').update(streamName).digest().readBigUInt64BE(0);

const u16 = (n) => { const b = Buffer.alloc(2); b.writeUInt16BE(n); return b; };
const u32 = (n) => { const b = Buffer.alloc(4); b.writeUInt32BE(n); return b; };
const u64 = (n) => { const b = Buffer.alloc(8); b.writeBigUInt64BE(n); return b; };
const short = (text) => { const b = Buffer.from(text); return Buffer.concat([u16(b.length), b]); };
const frame = (tag, ...parts) => {
  const body = Buffer.concat(parts);
  return Buffer.concat([u32(body.length + 1), Buffer.from([tag]), body]);
};

let failures = 0, target = address;

function connect() {
  const [host, port] = [target.slice(0, target.lastIndexOf(':')), Number(target.slice(target.lastIndexOf(':') + 1))];
  let credits = 0, next = null, durable = 0n, ended = false, finished = false, input = Buffer.alloc(0);
  const socket = net.connect(port, host, () => {
    socket.setKeepAlive(true, 30000); // a worker whose machine is gone says nothing
    socket.write(frame(0, short('0.0.1'), short(cookie), short('source.js'), short(instance)));
  });
  const notify = () => { credits -= 1; socket.write(frame(3, u64(stream), short(streamName), u64(0n))); };

  function pump() {
    if (next === null || ended) return;
    const batch = [];
    for (; credits > 0 && next <= count; credits -= 1, next += 1n) {
      batch.push(frame(5, u64(stream), u64(next), u64(0n), u16(0), Buffer.from(String(next))));
    }
    // Only once all is durable: an ACK of the last id that comes later is that of the end.
    if (durable >= count) { batch.push(frame(8, u64(stream))); ended = true; }
    if (batch.length) socket.write(Buffer.concat(batch));
  }

  function on(tag, body) {
    if (tag === 1) { // OK
      credits += body.readUInt32BE(0);
      notify();
    } else if (tag === 4 && body[0] === 1) { // NOTIFY_ACK: go on behind the last id that is durable
      const point = body.readBigUInt64BE(9);
      durable = point === NOTHING_SEEN ? 0n : point;
      next = durable + 1n;
      pump();
    } else if (tag === 6) { // ACK
      failures = 0;
      credits += body.readUInt32BE(0);
      for (let i = 0, at = 8; i < body.readUInt32BE(4); i += 1, at += 16) {
        if (body.readBigUInt64BE(at) !== stream) continue;
        if (ended) { finished = true; socket.end(); }
        durable = body.readBigUInt64BE(at + 8);
      }
      if (next === null && credits > 0) notify(); // it was refused: somebody else had the stream
      pump();
    } else if (tag === 2) { // ERROR
      console.error(body.subarray(2).toString());
      socket.destroy();
    } else if (tag === 7) { // RESTART, perhaps at another worker
      target = body.length > 4 ? body.subarray(4).toString() : address;
      socket.destroy();
    }
  }

  socket.on('data', (data) => {
    input = Buffer.concat([input, data]);
    while (input.length >= 4 && input.length >= 4 + input.readUInt32BE(0)) {
      const end = 4 + input.readUInt32BE(0);
      on(input[4], input.subarray(5, end));
      input = input.subarray(end);
    }
  });
  socket.on('error', () => { target = address; }); // nobody there: back to where we were told to begin
  socket.on('close', () => {
    if (finished) return;
    failures += 1;
    setTimeout(connect, Math.min(100 * 2 ** failures, 5000) * (0.5 + Math.random() / 2));
  });
}

connect();
