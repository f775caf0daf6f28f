// The timeline of all ranks: a canvas that is zoomed, moved and searched with a pointer or with the keyboard.
(() => {
  const source = document.getElementById("timeline-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const canvas = document.getElementById("timeline-canvas");
  const said = document.getElementById("timeline-said");
  const search = document.getElementById("timeline-search");
  const matchesShown = document.getElementById("timeline-matches");
  const pen = canvas.getContext("2d");
  const AXIS = 22, STRIP = 46, GAP = 10, RIGHT = 8;
  const FEWEST_NS = 50; // the closest view
  const MOST_MATCHES = 5000;

  function unpackPiece(piece) {
    const edges = new Float64Array(piece.lengths.length + 1);
    edges[0] = piece.at;
    piece.lengths.forEach((length, index) => { edges[index + 1] = edges[index] + length; });
    return { edges, states: piece.states, packed: piece.events, of: piece.of };
  }

  const rows = data.rows.map((row, index) => ({
    name: row.name, steps: row.steps, pieces: row.pieces.map(unpackPiece), why: data.why[index] || "",
  }));
  const operations = data.operations.map(([kind, ...flat]) => {
    const members = [];
    for (let index = 0; index < flat.length; index += 3) {
      members.push({ row: flat[index], start: flat[index + 1], end: flat[index + 2] });
    }
    return { kind, members };
  });
  const byRow = rows.map(() => []);
  operations.forEach((operation) => operation.members.forEach((member) => byRow[member.row].push({ operation, ...member })));
  byRow.forEach((list) => list.sort((a, b) => a.start - b.start));
  const bubbles = rows.map(() => []);
  data.bubbles.forEach(([row, start, end]) => bubbles[row].push([start, end]));

  // Events are unpacked when they are first needed: a page of many ranks opens without them.
  function eventsOf(piece) {
    if (!piece.events) {
      const numbers = piece.packed;
      let start = 0;
      piece.events = [];
      for (let index = 0; index < numbers.length; index += 3) {
        start += numbers[index];
        piece.events.push({ start, end: start + numbers[index + 1], name: numbers[index + 2] });
      }
    }
    return piece.events;
  }

  const rowHeight = rows.length <= 8 ? 34 : rows.length <= 24 ? 22 : rows.length <= 64 ? 12 : rows.length <= 128 ? 7 : 4;
  const top = AXIS + STRIP + GAP;
  const height = top + rows.length * rowHeight + 4;
  let width = 600, left = 64, first = 0, last = data.end;
  let chosen = 0, pointed = null, matches = [], match = -1, drag = null, asked = false, colours = {};

  const timeOf = (x) => first + ((x - left) / (width - left - RIGHT)) * (last - first);
  const placeOf = (time) => left + ((time - first) / (last - first)) * (width - left - RIGHT);
  const rowTop = (row) => top + row * rowHeight;

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(`--${name}`).trim();
    colours = { states: data.states.map(([, name]) => read(name)) };
    for (const name of ["ink", "faint", "grid", "ground", "bubble", "worse", "link"]) colours[name] = read(name);
  }

  function describeTime(ns) {
    if (Math.abs(ns) >= 1e9) return `${(ns / 1e9).toFixed(4)} s`;
    return Math.abs(ns) >= 1e6 ? `${(ns / 1e6).toFixed(3)} ms` : `${(ns / 1e3).toFixed(1)} µs`;
  }

  function roundStep(span, count) {
    const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
  }

  // The first index whose edge is beyond a time.
  function searchEdges(edges, time) {
    let low = 0, high = edges.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (edges[middle] <= time) low = middle + 1; else high = middle;
    }
    return low;
  }

  function ask() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  }

  function draw() {
    const scale = devicePixelRatio || 1;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    drawStrip();
    drawAxis();
    rows.forEach((row, index) => drawRow(row, index));
    drawMatches();
    drawPointed();
    canvas.dataset.first = first;
    canvas.dataset.last = last;
    canvas.dataset.row = chosen;
  }

  function drawAxis() {
    const perMs = 1e6, step = roundStep((last - first) / perMs, Math.max((width - left) / 90, 2));
    pen.textAlign = "center";
    for (let tick = Math.ceil(first / perMs / step) * step; tick <= last / perMs; tick += step) {
      const x = placeOf(tick * perMs);
      pen.fillStyle = colours.grid;
      pen.fillRect(x, AXIS + STRIP, 1, height);
      pen.fillStyle = colours.faint;
      const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
      if (x > left + 12 && x < width - 24) pen.fillText(`${tick.toFixed(Math.min(decimals, 6))}`, x, AXIS + STRIP - 4 + 0);
    }
    pen.textAlign = "right";
    pen.fillText("ms", left - 8, AXIS + STRIP - 4);
  }

  // All devices of the job over the whole time: the share of them in each state, and the part that is shown below.
  function drawStrip() {
    const bins = data.bins, size = STRIP - 18, base = new Float64Array(bins);
    const across = (width - left - RIGHT) / bins;
    for (const [state, shares] of data.shares) {
      pen.fillStyle = colours.states[state];
      for (let bin = 0; bin < bins; bin++) {
        if (!shares[bin]) continue;
        const share = shares[bin] / 1000;
        pen.fillRect(left + bin * across, AXIS + size - (base[bin] + share) * size, across + .4, share * size + .3);
        base[bin] += share;
      }
    }
    const whole = width - left - RIGHT, from = left + (first / data.end) * whole, to = left + (last / data.end) * whole;
    pen.fillStyle = colours.ground;
    pen.globalAlpha = .68;
    pen.fillRect(left, AXIS, from - left, size);
    pen.fillRect(to, AXIS, left + whole - to, size);
    pen.globalAlpha = 1;
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 1.2;
    pen.strokeRect(from + .5, AXIS - .5, Math.max(to - from - 1, 2), size + 1);
    pen.fillStyle = colours.faint;
    pen.textAlign = "right";
    pen.fillText("all", left - 8, AXIS + size / 2 + 4);
    drawSteps();
  }

  function drawSteps() {
    pen.textAlign = "center";
    const shown = rows[chosen];
    for (const [number, start, end] of shown.steps) {
      const from = Math.max(placeOf(start), left), to = Math.min(placeOf(end), width - RIGHT);
      if (to <= left || from >= width) continue;
      pen.fillStyle = colours.grid;
      pen.fillRect(from, 2, Math.max(to - from - 1, 1), AXIS - 7);
      pen.fillStyle = colours.ink;
      if (to - from > 54) pen.fillText(`step ${number}`, (from + to) / 2, 13);
    }
  }

  function drawRow(row, index) {
    const y = rowTop(index), size = rowHeight - (rowHeight > 8 ? 3 : rowHeight > 5 ? 1 : 0);
    const every = Math.max(1, Math.ceil(14 / rowHeight));
    if (index % every === 0 || index === chosen) {
      pen.fillStyle = index === chosen ? colours.ink : colours.faint;
      pen.textAlign = "right";
      if (index === chosen || Math.abs(index - chosen) >= every || rowHeight >= 12) {
        pen.fillText(row.name.replace("rank ", rows.length > 24 ? "" : "rank "), left - 8, y + size / 2 + 4);
      }
    }
    for (const piece of row.pieces) drawPiece(piece, y, size);
    if (rowHeight > 8) {
      pen.fillStyle = colours.bubble;
      for (const [start, end] of bubbles[index]) {
        const from = Math.max(placeOf(start), left), to = Math.min(placeOf(end), width - RIGHT);
        if (to > from) pen.fillRect(from, y + size - 4, Math.max(to - from, .5), 4);
      }
    }
    if (index === chosen) {
      pen.strokeStyle = colours.link;
      pen.lineWidth = 2;
      pen.strokeRect(left - 1, y - 1.5, width - left - RIGHT + 2, size + 3);
    }
  }

  function drawPiece(piece, y, size) {
    const { edges, states } = piece;
    const pixel = (last - first) / (width - left - RIGHT);
    let index = Math.max(searchEdges(edges, first) - 1, 0);
    // Stretches that share a pixel are drawn as what takes most of it.
    while (index < states.length && edges[index] < last) {
      const from = Math.max(edges[index], first);
      let to = edges[index + 1], state = states[index];
      if (to - from < pixel) {
        const limit = from + pixel, time = new Float64Array(data.states.length);
        while (index < states.length && edges[index] < limit) {
          time[states[index]] += Math.min(edges[index + 1], limit) - Math.max(edges[index], from);
          if (edges[index + 1] > limit) break;
          index++;
        }
        state = time.indexOf(Math.max(...time));
        to = limit;
      } else {
        index++;
      }
      const x = placeOf(from), end = Math.min(placeOf(Math.min(to, last)), width - RIGHT);
      pen.fillStyle = colours.states[state];
      pen.fillRect(x, y, Math.max(end - x, .4), size);
    }
    if (size > 20) drawNames(piece, y, size);
  }

  function drawNames(piece, y, size) {
    const shortest = ((last - first) / (width - left)) * 46;
    const wide = eventsOf(piece).filter((event) => event.end > first && event.start < last && event.end - event.start > shortest);
    pen.textAlign = "left";
    for (const event of wide.slice(0, 200)) {
      const x = Math.max(placeOf(event.start), left), end = Math.min(placeOf(event.end), width - RIGHT);
      pen.save();
      pen.beginPath();
      pen.rect(x, y, end - x - 2, size);
      pen.clip();
      pen.fillStyle = colours.ground;
      pen.fillText(data.names[event.name], x + 4, y + size / 2 + 4);
      pen.restore();
    }
  }

  function drawMatches() {
    if (!matches.length) return;
    pen.fillStyle = colours.worse;
    for (const found of matches) {
      const x = placeOf(found.start), end = placeOf(found.end);
      if (end < left || x > width) continue;
      pen.fillRect(Math.max(x, left), rowTop(found.row) + rowHeight - 3, Math.max(Math.min(end, width) - Math.max(x, left), 1.5), 2.5);
    }
    const current = matches[match];
    if (current) {
      const x = Math.max(placeOf(current.start), left), end = Math.min(placeOf(current.end), width - RIGHT);
      pen.strokeStyle = colours.worse;
      pen.lineWidth = 2;
      pen.strokeRect(x - 1, rowTop(current.row) - 1, Math.max(end - x, 3) + 2, rowHeight);
    }
  }

  // The operation that is pointed at, from the first rank to the last one.
  function drawPointed() {
    if (!pointed) return;
    const x = Math.max(placeOf(pointed.start), left), end = Math.min(placeOf(pointed.end), width - RIGHT);
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 1.5;
    if (end > x) pen.strokeRect(x, rowTop(pointed.row), end - x, Math.max(rowHeight - 3, 2));
    if (!pointed.operation) return;
    pen.beginPath();
    pointed.operation.members.forEach((member, index) => {
      const at = Math.min(Math.max(placeOf(member.start), left), width - RIGHT), y = rowTop(member.row) + rowHeight / 2;
      if (index) pen.lineTo(at, y); else pen.moveTo(at, y);
    });
    pen.stroke();
  }

  function show(from, to) {
    const span = Math.min(Math.max(to - from, FEWEST_NS), data.end);
    first = Math.min(Math.max(from, 0), data.end - span);
    last = first + span;
    ask();
  }

  function zoom(factor, at = (first + last) / 2) {
    const span = (last - first) * factor;
    show(at - (at - first) * factor, at - (at - first) * factor + span);
  }

  const move = (share) => show(first + share * (last - first), last + share * (last - first));

  // What a row does at a moment.
  function look(row, time) {
    for (const piece of rows[row].pieces) {
      const index = searchEdges(piece.edges, time) - 1;
      if (index < 0 || index >= piece.states.length) continue;
      const member = byRow[row].find((entry) => entry.start <= time && time < entry.end);
      const isCommunication = data.states[piece.states[index]][0].includes("communication");
      return {
        row, piece, index, state: piece.states[index], start: piece.edges[index], end: piece.edges[index + 1],
        operation: isCommunication && member ? member.operation : null,
        event: eventsOf(piece).find((event) => event.start <= time && time < event.end),
      };
    }
    return null;
  }

  function describe(seen) {
    const row = rows[seen.row];
    const parts = [
      `${row.name}: ${data.states[seen.state][0]} for ${describeTime(seen.end - seen.start)}`,
      `at ${describeTime(seen.start)}`,
    ];
    const step = row.steps.find(([, start, end]) => start <= seen.start && seen.start < end);
    if (step) parts.push(`in step ${step[0]}`);
    let text = parts.join(", ");
    if (seen.event) text += `. ${data.names[seen.event.name]}, ${describeTime(seen.event.end - seen.event.start)}`;
    if (seen.operation) {
      const members = seen.operation.members, own = members.findIndex((member) => member.row === seen.row);
      const late = members[members.length - 1];
      text += `. ${data.kinds[seen.operation.kind]} over ${members.length} ranks: it came ${own + 1}.`;
      if (late.row !== seen.row) text += ` and waited ${describeTime(late.start - members[own].start)} for ${rows[late.row].name}`;
      else text += " and the others waited for it";
    }
    if (row.why) text += `. Shown because: ${row.why}`;
    return `${text}.`;
  }

  function say(seen) {
    pointed = seen;
    said.textContent = seen ? describe(seen) : "";
    ask();
  }

  function findMatches(words) {
    const wanted = words.trim().toLowerCase(), result = [];
    if (!wanted) return result;
    const step = /^step\s*#?(\d+)$/.exec(wanted), rank = /^rank\s*(\d+)$/.exec(wanted);
    const names = new Set(data.names.flatMap((name, index) => (name.toLowerCase().includes(wanted) ? [index] : [])));
    const kinds = new Set(data.kinds.flatMap((kind, index) => (kind.toLowerCase().includes(wanted) ? [index] : [])));
    const states = new Set(data.states.flatMap(([name], index) => (name.includes(wanted) ? [index] : [])));
    rows.forEach((row, index) => {
      if (step) row.steps.forEach(([number, start, end]) => number === Number(step[1]) && result.push({ row: index, start, end }));
      if (rank && row.name === `rank ${rank[1]}`) result.push({ row: index, start: 0, end: data.end });
      byRow[index].forEach((entry) => kinds.has(entry.operation.kind) && result.push({ row: index, start: entry.start, end: entry.end }));
      for (const piece of row.pieces) {
        if (names.size) eventsOf(piece).forEach((event) => names.has(event.name) && result.push({ row: index, start: event.start, end: event.end }));
        if (states.size && !names.size && !kinds.size) piece.states.forEach((state, at) => {
          if (states.has(state)) result.push({ row: index, start: piece.edges[at], end: piece.edges[at + 1] });
        });
      }
    });
    return result.sort((a, b) => a.start - b.start || a.row - b.row).slice(0, MOST_MATCHES);
  }

  function goTo(index) {
    if (!matches.length) return;
    match = (index + matches.length) % matches.length;
    const found = matches[match], span = Math.max((found.end - found.start) * 4, FEWEST_NS);
    chosen = found.row;
    const middle = (found.start + found.end) / 2;
    show(middle - span / 2, middle + span / 2);
    say(look(found.row, middle));
    matchesShown.textContent = `${match + 1} of ${matches.length === MOST_MATCHES ? `${MOST_MATCHES} or more` : matches.length}`;
  }

  search.addEventListener("input", () => {
    matches = findMatches(search.value);
    match = -1;
    matchesShown.textContent = search.value.trim() ? `${matches.length} match${matches.length === 1 ? "" : "es"}` : "";
    ask();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); goTo(match + (event.shiftKey ? -1 : 1)); }
    if (event.key === "Escape") { search.value = ""; search.dispatchEvent(new Event("input")); canvas.focus(); }
  });

  const acts = {
    in: () => zoom(.5), out: () => zoom(2), left: () => move(-.25), right: () => move(.25), all: () => show(0, data.end),
    next: () => goTo(match + 1), previous: () => goTo(match - 1),
  };
  document.querySelectorAll("#timeline-view [data-act]").forEach((button) => button.addEventListener("click", acts[button.dataset.act]));

  function chooseRow(row) {
    chosen = Math.min(Math.max(row, 0), rows.length - 1);
    say(look(chosen, pointed ? pointed.start : (first + last) / 2));
    if (!pointed) said.textContent = rows[chosen].name;
  }

  function chooseStretch(by) {
    const seen = pointed && pointed.row === chosen ? pointed : look(chosen, (first + last) / 2);
    if (!seen) return;
    const index = Math.min(Math.max(seen.index + by, 0), seen.piece.states.length - 1);
    const start = seen.piece.edges[index], end = seen.piece.edges[index + 1];
    if (start < first || end > last) show(start - (last - first) / 2, start + (last - first) / 2);
    say(look(chosen, (start + end) / 2));
  }

  const keys = {
    "+": acts.in, "=": acts.in, "-": acts.out, ArrowLeft: acts.left, ArrowRight: acts.right, 0: acts.all, Home: acts.all,
    ArrowUp: () => chooseRow(chosen - 1), ArrowDown: () => chooseRow(chosen + 1),
    ".": () => chooseStretch(1), ",": () => chooseStretch(-1), "/": () => search.focus(), Escape: () => say(null),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  const spot = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls as ever
    event.preventDefault();
    zoom(Math.exp(Math.sign(event.deltaY) * .25), timeOf(spot(event).x));
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(.4, timeOf(spot(event).x)));
  canvas.addEventListener("pointerdown", (event) => {
    const { x, y } = spot(event);
    const inStrip = y > AXIS && y < AXIS + STRIP - 18;
    drag = { x, first, last, inStrip };
    canvas.setPointerCapture(event.pointerId);
    if (inStrip) {
      const at = ((x - left) / (width - left - RIGHT)) * data.end, half = (last - first) / 2;
      show(at - half, at + half);
    } else if (y >= top) {
      chosen = Math.min(Math.floor((y - top) / rowHeight), rows.length - 1);
      canvas.classList.add("dragging");
    }
  });
  canvas.addEventListener("pointermove", (event) => {
    const { x, y } = spot(event);
    if (drag) {
      const whole = width - left - RIGHT;
      if (drag.inStrip) {
        const at = ((x - left) / whole) * data.end, half = (last - first) / 2;
        show(at - half, at + half);
      } else {
        const by = ((drag.x - x) / whole) * (drag.last - drag.first);
        show(drag.first + by, drag.last + by);
      }
      return;
    }
    const row = Math.floor((y - top) / rowHeight);
    say(row >= 0 && row < rows.length && x > left ? look(row, timeOf(x)) : null);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, () => { drag = null; canvas.classList.remove("dragging"); });
  }
  canvas.addEventListener("pointerleave", () => { if (!drag) say(null); });

  function resize() {
    const scale = devicePixelRatio || 1;
    width = canvas.parentElement.clientWidth;
    left = Math.min(24 + 7 * Math.max(...rows.map((row) => (rows.length > 24 ? row.name.replace("rank ", "") : row.name).length)), width / 3);
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    draw();
  }
  readColours();
  new ResizeObserver(resize).observe(canvas.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });
  addEventListener("beforeprint", () => { readColours(); draw(); });
  resize();
  requestAnimationFrame(() => setTimeout(() => { // the first picture is on the screen
    document.documentElement.dataset.ready = "true";
    document.documentElement.dataset.readyMs = performance.now();
  }));
})();
