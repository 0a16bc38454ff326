// Heat maps: rows by depth, steps across, a colour for each value. Drawn on a canvas when they come into
// view; the cursor, by mouse or arrow keys, says site, step and value.

class HeatMap {
    /**
     * steps: Int32Array, ascending. rows: names. groups: of each row what it belongs to, for labels and lines
     * between. valueAt(row, column): a number, NaN where there is none. bars: [{name, from, to}] in rows,
     * drawn at the right.
     */
    constructor(place, data) {
        Object.assign(this, {empty: 'not recorded or not finite'}, data);
        this.columns = this.steps.length;
        this.cursor = null;
        this.readout = el('p', {class: 'readout map-readout'}, '\u00a0');
        this.canvas = el('canvas', {
            tabindex: 0,
            role: 'img',
            'aria-label': `${this.title}: ${this.rows.length} rows, ${
                this.columns} recorded steps. Arrow keys move a cursor that reads values.`,
            onmousemove: event => this.onMouse(event),
            onmouseleave: () => this.moveTo(null),
            onkeydown: event => this.onKey(event),
            onblur: () => this.moveTo(null)
        });
        this.box = el('div', {class: 'cell'});
        this.frame = el('div', {class: 'map-frame'}, this.canvas, this.box);
        this.legend = el('div', {class: 'legend'});
        place.replaceChildren(this.readout, this.frame, this.legend);
        this.range();
        const count = this.rows.length;
        this.rowHeight = count <= 34 ? 15 :
            count <= 60              ? 11 :
                                       Math.max(2, Math.min(8, Math.floor(640 / count)));
        this.named = this.rowHeight >= 11;
        this.left = this.named && !this.bars ? 190 : 58;
        this.right = this.bars ? 34 * this.bars.length + 16 : 12;
        this.top = 12;
        new IntersectionObserver((entries, observer) => {
            if (!entries.some(entry => entry.isIntersecting)) return;
            observer.disconnect();
            this.draw();
        }, {rootMargin: '200px'}).observe(this.frame);
        this.canvas.style.height = this.height() + 'px';
        new ResizeObserver(() => this.drawn && this.draw()).observe(this.frame);
    }

    height() { return this.top + this.rows.length * this.rowHeight + 24; }

    /** Colours span all values of the map; with a logarithmic scale those above zero. */
    range() {
        let low = Infinity, high = -Infinity;
        for (let r = 0; r < this.rows.length; ++r)
            for (let c = 0; c < this.columns; ++c) {
                const value = this.valueAt(r, c);
                if (!Number.isFinite(value) || (this.log && value <= 0)) continue;
                low = Math.min(low, value);
                high = Math.max(high, value);
            }
        Object.assign(this, {low, high});
    }

    /** 0 to 255. */
    shade(value) {
        if (this.log && value <= 0) return 0;
        if (this.low >= this.high) return 192;
        const f = this.log ? Math.log : x => x;
        return Math.round(255 * (f(value) - f(this.low)) / (f(this.high) - f(this.low)));
    }

    /** Steps at the left and right edge. A column reaches to the next recorded step. */
    edges() {
        if (view.window) return view.window;
        return [this.steps[0], this.end(this.columns - 1)];
    }

    /** The step at which a column's picture ends. */
    end(c) {
        if (c + 1 < this.columns) return this.steps[c + 1];
        return this.steps[c] + (c > 0 ? this.steps[c] - this.steps[c - 1] : 1);
    }

    x(step) {
        const [a, b] = this.edges();
        return this.left + (step - a) / (b - a) * this.width;
    }

    /** One pixel a value, to be stretched. */
    pixels() {
        const canvas = document.createElement('canvas');
        canvas.width = this.columns;
        canvas.height = this.rows.length;
        const context = canvas.getContext('2d'),
              image = context.createImageData(this.columns, this.rows.length);
        for (let r = 0; r < this.rows.length; ++r)
            for (let c = 0; c < this.columns; ++c) {
                const value = this.valueAt(r, c), at = 4 * (r * this.columns + c);
                if (!Number.isFinite(value)) continue;
                const shade = 3 * this.shade(value);
                image.data[at] = viridis[shade];
                image.data[at + 1] = viridis[shade + 1];
                image.data[at + 2] = viridis[shade + 2];
                image.data[at + 3] = 255;
            }
        context.putImageData(image, 0, 0);
        return canvas;
    }

    draw() {
        this.drawn = true;
        const ratio = devicePixelRatio || 1, outer = this.frame.clientWidth,
              tall = this.rows.length * this.rowHeight;
        if (outer === 0) return;
        this.width = outer - this.left - this.right;
        this.canvas.width = Math.round(outer * ratio);
        this.canvas.height = Math.round(this.height() * ratio);
        this.canvas.style.width = outer + 'px';
        const context = this.canvas.getContext('2d');
        context.scale(ratio, ratio);
        context.font = '10.5px ' + styleOf('sans');
        context.textBaseline = 'middle';
        // What was not recorded shows the ground.
        context.fillStyle = styleOf('ground');
        context.fillRect(this.left, this.top, this.width, tall);
        context.imageSmoothingEnabled = false;
        const source = this.source ??= this.pixels(), [a, b] = this.edges();
        for (let c = 0; c < this.columns; ++c) {
            const end = this.end(c);
            if (end < a || this.steps[c] > b) continue;
            const x0 = Math.max(this.left, Math.round(this.x(this.steps[c])));
            const x1 = Math.min(this.left + this.width, Math.max(Math.round(this.x(end)), x0 + 1));
            if (x1 > x0) context.drawImage(source, c, 0, 1, this.rows.length, x0, this.top, x1 - x0, tall);
        }
        this.drawLabels(context, tall);
        this.drawSteps(context, tall);
        for (const [k, bar] of (this.bars ?? []).entries()) this.drawBar(context, bar, k, tall);
        this.drawLegend();
        this.place();
    }

    /** Groups, and where there is room rows. */
    drawLabels(context, tall) {
        context.textAlign = 'right';
        let begin = 0, last = -99;
        for (let r = 1; r <= this.rows.length; ++r) {
            if (r < this.rows.length && this.groups[r] === this.groups[begin]) continue;
            const y = this.top + r * this.rowHeight, middle = this.top + (begin + r) / 2 * this.rowHeight;
            if (!this.named && this.groups[begin] !== '' && middle - last >= 12) {
                context.fillStyle = styleOf('quiet');
                context.fillText(this.groups[begin], this.left - 8, middle);
                last = middle;
            }
            if (r < this.rows.length && this.rows.length > 2 && !this.bars) {
                context.fillStyle = styleOf('paper');
                context.globalAlpha = 0.75;
                context.fillRect(this.left, Math.round(y), this.width, 1);
                context.globalAlpha = 1;
            }
            begin = r;
        }
        if (!this.named) return;
        context.fillStyle = styleOf('quiet');
        const stride = Math.ceil(11 / this.rowHeight);
        for (let r = 0; r < this.rows.length; r += stride)
            context.fillText(
                this.rows[r], this.left - 8, this.top + (r + 0.5) * this.rowHeight, this.left - 12);
    }

    drawSteps(context, tall) {
        const [a, b] = this.edges(), bottom = this.top + tall;
        const rough = (b - a) / Math.max(2, this.width / 110), power = 10 ** Math.floor(Math.log10(rough));
        const stride = Math.max(1, [1, 2, 5, 10].find(k => k * power >= rough) * power);
        context.textAlign = 'center';
        context.fillStyle = context.strokeStyle = styleOf('quiet');
        for (let step = Math.ceil(a / stride) * stride; step <= b; step += stride) {
            const x = this.x(step);
            context.fillRect(Math.round(x), bottom, 1, 4);
            if (x < this.left + this.width - 8) context.fillText(grouped(step), x, bottom + 13);
        }
        const marked = (this.events ?? [])
                           .filter(event => event.severity !== 'note')
                           .sort((x, y) => severities[y.severity].rank - severities[x.severity].rank);
        for (const event of marked) {
            if (event.step < a || event.step > b) continue;
            const x = this.x(event.step);
            context.fillStyle = styleOf(event.severity);
            context.beginPath();
            context.moveTo(x - 4, this.top - 9), context.lineTo(x + 4, this.top - 9),
                context.lineTo(x, this.top - 2);
            context.fill();
        }
    }

    /** A format's range of magnitudes, as far as the map shows it. */
    drawBar(context, {name, from, to}, k, tall) {
        const x = this.left + this.width + 28 + 34 * k,
              clip = y => Math.min(Math.max(y, 0), this.rows.length);
        const y0 = this.top + clip(from) * this.rowHeight, y1 = this.top + clip(to) * this.rowHeight;
        context.fillStyle = styleOf('quiet');
        context.globalAlpha = 0.35;
        context.fillRect(x - 3, y0, 6, Math.max(0, y1 - y0));
        context.globalAlpha = 1;
        if (from > 0 && from < this.rows.length) context.fillRect(x - 7, y0, 14, 1.5);
        if (to > 0 && to < this.rows.length) context.fillRect(x - 7, y1 - 1.5, 14, 1.5);
        context.textAlign = 'center';
        context.font = '9.5px ' + styleOf('sans');
        context.fillText(name, x, this.top + tall + 10);
    }

    drawLegend() {
        if (!(this.low <= this.high)) {
            this.legend.replaceChildren(el('span', {}, 'No finite value to colour.'));
            return;
        }
        const bar = el('canvas', {width: 256, height: 1, 'aria-hidden': 'true'}),
              context = bar.getContext('2d');
        const image = context.createImageData(256, 1);
        for (let i = 0; i < 256; ++i)
            image.data.set([viridis[3 * i], viridis[3 * i + 1], viridis[3 * i + 2], 255], 4 * i);
        context.putImageData(image, 0, 0);
        const middle = this.log ? Math.sqrt(this.low * this.high) : (this.low + this.high) / 2;
        this.legend.replaceChildren(
            el('span', {}, shown(this.low)), bar, el('span', {}, shown(this.high)),
            el('span', {class: 'unit'}, `halfway ${shown(middle)}`), el('span', {class: 'patch'}),
            el('span', {class: 'unit'}, this.empty),
            this.note ? el('span', {class: 'unit'}, this.note) : null);
    }

    moveTo(cell) {
        this.cursor = cell;
        this.place();
        if (!cell) return;
        const value = this.valueAt(cell.row, cell.column);
        const text = Number.isNaN(value) ? this.empty : shown(value);
        this.readout.replaceChildren(
            el('strong', {}, this.rows[cell.row]), ` step ${grouped(this.steps[cell.column])} `,
            el('span', {}, text));
    }

    /** The outline of the cell at the cursor. */
    place() {
        const cell = this.cursor;
        this.box.hidden = !cell;
        if (!cell) {
            this.readout.textContent = '\u00a0';
            return;
        }
        const x0 = Math.max(this.x(this.steps[cell.column]), this.left);
        const next = Math.min(this.end(cell.column), this.edges()[1]);
        Object.assign(this.box.style, {
            left: x0 - 1 + 'px',
            top: this.top + cell.row * this.rowHeight - 1 + 'px',
            width: Math.max(3, this.x(next) - x0) + 'px',
            height: this.rowHeight + 'px'
        });
    }

    onMouse(event) {
        const area = this.canvas.getBoundingClientRect(), [a, b] = this.edges();
        const row = Math.floor((event.clientY - area.top - this.top) / this.rowHeight),
              across = event.clientX - area.left - this.left;
        if (row < 0 || row >= this.rows.length || across < 0 || across >= this.width)
            return this.moveTo(null);
        const step = a + across / this.width * (b - a), column = lowerBound(this.steps, step + 1e-9) - 1;
        this.moveTo(column < 0 ? null : {row, column});
    }

    onKey(event) {
        const by = event.shiftKey ? 10 : 1, [a, b] = this.edges();
        const from = Math.max(0, lowerBound(this.steps, a)),
              to = Math.max(from, lowerBound(this.steps, b) - 1);
        const {row, column} = this.cursor ?? {row: 0, column: from};
        const moved = {
            ArrowUp: [-by, 0],
            ArrowDown: [by, 0],
            ArrowLeft: [0, -by],
            ArrowRight: [0, by],
            Home: [0, -1e9],
            End: [0, 1e9]
        }[event.key];
        if (!moved) return;
        event.preventDefault();
        const held = (x, low, high) => Math.min(Math.max(x, low), high);
        this.moveTo(
            this.cursor ? {
                row: held(row + moved[0], 0, this.rows.length - 1),
                column: held(column + moved[1], from, to)
            } :
                          {row, column});
        say(this.readout.textContent);
    }
}
