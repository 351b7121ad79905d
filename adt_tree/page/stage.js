// Draws the stage from props.value; runs once in the page, with `element`, `props` and `watch`.
const stage = element.querySelector('.stage');
const panels = [...stage.querySelectorAll('.panel')];
const pictures = panels.map(() => new Image());
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const MOST = 8;  // accepted tokens of the ramp's end

const colour = name => getComputedStyle(stage).getPropertyValue(name).trim();
const number = (value, digits) => value === undefined ? '–' : value.toFixed(digits);

function ramp(share) {
  const at = Math.min(share, 1) * (RAMP.length - 1), low = Math.min(Math.floor(at), RAMP.length - 2);
  const mix = RAMP[low].map((part, i) => Math.round(part + (RAMP[low + 1][i] - part) * (at - low)));
  return `rgb(${mix})`;
}

// A canvas as wide as the page shows it, in device pixels, and the size of its cells.
function prepared(canvas, value) {
  const width = Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio));
  const cell = width / value.columns, height = Math.round(cell * value.rows);
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const pen = canvas.getContext('2d');
  pen.fillStyle = colour('--pending');
  pen.fillRect(0, 0, width, height);
  return [pen, cell];
}

function drawImage(panel, picture, own, value) {
  const [pen, cell] = prepared(panel.querySelector('.image'), value);
  const painted = picture.complete && picture.naturalWidth ? own.painted ?? 0 : 0;
  if (painted) {
    const rows = Math.floor(painted / value.columns), rest = painted % value.columns;
    pen.save();
    pen.beginPath();
    pen.rect(0, 0, cell * value.columns, cell * rows);
    pen.rect(0, cell * rows, cell * rest, cell);
    pen.clip();
    pen.imageSmoothingQuality = 'high';
    pen.drawImage(picture, 0, 0, cell * value.columns, cell * value.rows);
    pen.restore();
  }
  pen.fillStyle = colour('--line');
  for (let place = painted; place < own.decided; place++) {  // decided, not painted yet
    pen.fillRect(cell * (place % value.columns), cell * Math.floor(place / value.columns), cell, cell);
  }
  if (own.draft) drawDraft(pen, cell, own.draft, value.columns);
}

// Where every node stands: nodes of the same depth share the cell of their position.
function places(draft, cell, columns) {
  const levels = new Map();
  draft.depths.forEach((depth, node) => levels.set(depth, [...levels.get(depth) ?? [], node]));
  return draft.depths.map((depth, node) => {
    const level = levels.get(depth), position = draft.root + depth;
    const step = Math.min(0.3, 0.84 / level.length);
    const down = (level.indexOf(node) - (level.length - 1) / 2) * step;
    return [cell * (position % columns + 0.5), cell * (Math.floor(position / columns) + 0.5 + down)];
  });
}

function drawDraft(pen, cell, draft, columns) {
  const at = places(draft, cell, columns), accepted = new Set(draft.accepted);
  const good = colour('--accepted'), bad = colour('--refused'), ground = colour('--ground');
  const wide = Math.max(1.2 * devicePixelRatio, cell * 0.06);
  pen.lineCap = 'round';
  const line = (node, tint, width) => {
    const [x, y] = at[node], [left, top] = at[draft.parents[node]];
    pen.strokeStyle = tint; pen.lineWidth = width;
    pen.beginPath();
    if (x > left) { pen.moveTo(left, top); pen.lineTo(x, y); }
    else {  // on to the next row
      pen.moveTo(left, top); pen.lineTo(left + cell / 2, top);
      pen.moveTo(x - cell / 2, y); pen.lineTo(x, y);
    }
    pen.stroke();
  };
  const dot = (node, tint, size) => {
    pen.beginPath(); pen.arc(...at[node], size, 0, 7);
    pen.fillStyle = tint; pen.fill();
    pen.strokeStyle = ground; pen.lineWidth = wide * 0.5; pen.stroke();
  };
  const nodes = draft.depths.map((_, node) => node).slice(1);
  const refused = nodes.filter(node => !accepted.has(node)), kept = [...accepted];
  refused.forEach(node => line(node, bad, wide));
  kept.forEach(node => { line(node, ground, wide * 2.6); line(node, good, wide * 1.6); });
  refused.forEach(node => dot(node, bad, Math.max(wide * 1.3, cell * 0.09)));
  kept.forEach(node => dot(node, good, Math.max(wide * 1.6, cell * 0.14)));
  dot(0, colour('--ink'), Math.max(wide * 1.6, cell * 0.14));
}

function drawHeat(own, value) {
  const [pen, cell] = prepared(stage.querySelector('.heat'), value);
  (own.heat ?? []).forEach((length, place) => {
    const x = cell * (place % value.columns), y = cell * Math.floor(place / value.columns);
    pen.fillStyle = ramp(length / MOST);
    pen.fillRect(x, y, Math.ceil(cell), Math.ceil(cell));
  });
}

const WORDS = {
  idle: 'Enter a prompt and press Generate.', stopped: 'Stopped.',
  waiting: 'Waiting: images of earlier visitors come first.',
  drawing: 'Both methods run in turns on this machine, with the same seed.',
};

function show() {
  const value = JSON.parse(props.value);
  const began = stage.dataset.state !== value.state;
  stage.dataset.state = value.state;
  const wanted = {drawing: stage, refused: stage.querySelector('.verdict')}[value.state];
  if (began && wanted && wanted.getBoundingClientRect().top > 0.6 * innerHeight) {  // on a phone
    wanted.scrollIntoView({behavior: 'smooth', block: wanted === stage ? 'start' : 'center'});
  }
  stage.dataset.same = value.verdict ? (value.verdict.same ? 'yes' : 'no') : '';
  stage.querySelector('.fast .name').textContent = value.panels[1].method;
  const [answer, reason] = value.state === 'refused' ? ['Error:', value.why]
    : value.verdict ? [`Same image: ${value.verdict.same ? 'yes' : 'no'}`, value.verdict.text]
      : ['', WORDS[value.state]];
  stage.querySelector('.answer').textContent = answer;
  stage.querySelector('.reason').textContent = reason;
  panels.forEach((panel, i) => {
    const own = value.panels[i];
    const set = (name, text) => { panel.querySelector(name).textContent = text; };
    set('.rate', number(own.rate, 0)); set('.forwards', own.forwards ?? '–');
    set('.seconds', number(own.seconds, 2)); set('.length', number(own.length, 2));
    panel.querySelector('.bar i').style.width = `${100 * own.decided / (value.rows * value.columns)}%`;
    panel.dataset.decided = own.decided;
    const draw = () => drawImage(panel, pictures[i], own, value);
    if (own.image && pictures[i].src !== own.image) {
      const next = new Image();
      next.onload = () => { pictures[i] = next; draw(); };
      next.src = own.image;
    }
    if (!own.image) pictures[i] = new Image();
    draw();
  });
  drawHeat(value.panels[1], value);
}

watch('value', show);
new ResizeObserver(show).observe(stage);
new MutationObserver(show).observe(document.body, {attributes: true, attributeFilter: ['class']});
show();
