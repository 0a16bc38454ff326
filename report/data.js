// What the page carries, and how it is read: arrays in base64 (report/encode.h), numbers as people read them.

function bytesOf(text) {
    const letters = atob(text), bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; ++i) bytes[i] = letters.charCodeAt(i);
    return bytes;
}

/** The upper three bytes of float32s. */
function realsOf(text) {
    const bytes = bytesOf(text), words = new Uint32Array(bytes.length / 3);
    for (let i = 0; i < words.length; ++i)
        words[i] = (bytes[3 * i] << 8) | (bytes[3 * i + 1] << 16) | (bytes[3 * i + 2] << 24);
    return new Float32Array(words.buffer);
}

const integersOf = text => new Int32Array(bytesOf(text).buffer);

/** The first index whose value is at least x. */
function lowerBound(values, x) {
    let low = 0, high = values.length;
    while (low < high) {
        const middle = (low + high) >> 1;
        if (values[middle] < x) low = middle + 1;
        else high = middle;
    }
    return low;
}

function nearest(values, x) {
    const i = lowerBound(values, x);
    if (i === values.length) return i - 1;
    return i > 0 && x - values[i - 1] < values[i] - x ? i - 1 : i;
}

/** A run with its arrays, each decoded when it is first asked for. */
function readRun(run, index) {
    const decoded = {};
    const once = (key, make) => decoded[key] ??= make();
    return Object.assign(run, {
        index,
        steps: () => once('steps', () => integersOf(run.curves.steps)),
        series: key => once(key, () => realsOf(run.curves.series[key])),
        stepsOf: axis => once('axis ' + axis, () => integersOf(run.maps.axes[axis].steps)),
        valuesOf: map =>
            once(map.quantity + map.axis, () => map.values === null ? null : realsOf(map.values)),
        eventById: id => run.events.find(event => event.id === id),
    });
}

/** Four significant digits. */
function shown(x) {
    if (x === null || x === undefined || Number.isNaN(x)) return 'not finite';
    if (x === 0) return '0';
    const size = Math.abs(x);
    if (size >= 1e5 || size < 1e-3) return x.toExponential(3).replace(/\.?0+e/, 'e').replace('e+', 'e');
    return String(Number(x.toPrecision(4)));
}

const grouped = n => Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, '\u202f');
const megabytes = n => n >= 1e9 ? (n / 1e9).toFixed(2) + ' GB' :
    n >= 1e5                    ? (n / 1e6).toFixed(1) + ' MB' :
                                  (n / 1e3).toFixed(0) + ' kB';

/** An element: el('a', {class: 'x', href: '#', onclick: f}, 'text', otherElement). Text is never HTML. */
function el(tag, attributes = {}, ...children) {
    const made = tag === 'svg' || tag === 'path' || tag === 'line' || tag === 'circle' ?
        document.createElementNS('http://www.w3.org/2000/svg', tag) :
        document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
        if (value === null || value === undefined || value === false) continue;
        if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
        else made.setAttribute(key, value === true ? '' : value);
    }
    made.append(...children.filter(child => child !== null && child !== undefined));
    return made;
}

const byId = id => document.getElementById(id);

function say(text) { byId('spoken').textContent = text; }

/** A labelled choice; `options` are [value, text]. */
function choice(label, options, value, onchange) {
    const select =
        el('select', {onchange: () => onchange(select.value)},
           ...options.map(([v, text]) => el('option', {value: v, selected: v === value}, text)));
    select.value = value;
    return el('label', {}, el('span', {}, label), select);
}

/** A button that is on or off. */
function toggle(text, on, onchange, attributes = {}) {
    const button =
        el('button', {
            type: 'button',
            'aria-pressed': String(on),
            ...attributes,
            onclick: () => {
                on = !on;
                button.setAttribute('aria-pressed', String(on));
                onchange(on);
            }
        },
           ...[text].flat());
    return button;
}
