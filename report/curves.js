// Curves of every step, several runs over one another, all with the same window of steps. What is drawn is
// thinned to the width of the chart by lowest and highest value, again for each window, so that zooming in
// shows more.

const quantities = [
    ['loss', 'Loss', 'nats per token'],
    ['grad_norm', 'Gradient norm', 'before clipping'],
    ['update_norm', 'Update norm', ''],
    ['lr', 'Learning rate', ''],
    ['clip', 'Clip factor', '1: not clipped'],
    ['weight_norm', 'Weight norm', ''],
    ['tokens_per_second', 'Tokens per second', ''],
];

/** What all charts and heat maps share. `window`: first and last step shown, null for all. */
const view = {
    window: null,
    logarithmic: false,
    charts: [],
    followers: []
};

/** [step, value] of a stretch of a series: lowest and highest of each bucket, and where it is not finite. */
function thinned(steps, values, begin, end, buckets) {
    const points = [];
    const add = i => points.push([steps[i], Number.isFinite(values[i]) ? values[i] : NaN]);
    if (end - begin <= 2 * buckets) {
        for (let i = begin; i < end; ++i) add(i);
        return points;
    }
    for (let b = 0; b < buckets; ++b) {
        const from = begin + Math.floor((end - begin) * b / buckets),
              to = begin + Math.floor((end - begin) * (b + 1) / buckets);
        let low = -1, high = -1, gap = -1;
        for (let i = from; i < to; ++i) {
            if (!Number.isFinite(values[i])) gap = gap < 0 ? i : gap;
            else {
                if (low < 0 || values[i] < values[low]) low = i;
                if (high < 0 || values[i] > values[high]) high = i;
            }
        }
        [...new Set([low, high, gap])].filter(i => i >= 0).sort((x, y) => x - y).forEach(add);
    }
    return points;
}

/** Rows for dygraphs: a step, and the value of each run there; null where a run has no such step. */
function merged(lists) {
    const rows = [], at = lists.map(() => 0);
    for (;;) {
        let step = Infinity;
        lists.forEach((list, r) => {
            if (at[r] < list.length) step = Math.min(step, list[at[r]][0]);
        });
        if (step === Infinity) return rows;
        rows.push([
            step,
            ...lists.map(
                (list, r) => at[r] < list.length && list[at[r]][0] === step ? list[at[r]++][1] : null)
        ]);
    }
}

/** Steps of all runs, first and last. */
function extent(runs) {
    const with_steps = runs.filter(run => run.curves.count > 0);
    return [
        Math.min(...with_steps.map(run => run.curves.first)),
        Math.max(...with_steps.map(run => run.curves.last))
    ];
}

function rowsOf(runs, key, window, width) {
    return merged(runs.map(run => {
        const steps = run.steps(), values = run.series(key);
        if (!window) return thinned(steps, values, 0, steps.length, width);
        // Fine within the window; around it enough for the chart to know how far there is to go.
        const begin = Math.max(0, lowerBound(steps, window[0]) - 1),
              end = Math.min(steps.length, lowerBound(steps, window[1]) + 2);
        return [
            ...thinned(steps, values, 0, begin, 50), ...thinned(steps, values, begin, end, width),
            ...thinned(steps, values, end, steps.length, 50)
        ];
    }));
}

/** The last row of a chart that is not behind this step. */
function rowAt(graph, step) {
    let low = 0, high = graph.numRows();
    while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (graph.getValue(middle, 0) <= step) low = middle;
        else high = middle;
    }
    return low;
}

class Curve {
    /** `own`: a window of its own, which does not follow the others. */
    constructor(place, key, title, unit, runs, own = null) {
        Object.assign(this, {key, title, runs, own, graph: null, cursor: null});
        this.readout = el('span', {class: 'readout'});
        this.plot = el('div', {
            class: 'plot',
            tabindex: 0,
            role: 'img',
            'data-key': key,
            'aria-label': `${title} of ${
                              runs.map(run => run.name)
                                  .join(', ')}, by step. Arrow keys read values, plus and minus zoom, ` +
                'shift with arrows pans, zero shows all.',
            onkeydown: event => this.onKey(event)
        });
        this.figure =
            el('figure', {class: 'chart' + (key === 'loss' && !own ? ' first' : '')},
               el('figcaption', {}, el('strong', {}, title), unit ? el('span', {class: 'unit'}, unit) : null,
                  this.readout),
               this.plot);
        place.append(this.figure);
    }

    window() { return this.own ?? view.window; }
    shownRuns() { return this.runs.filter(run => !run.hidden); }
    rows() {
        return rowsOf(this.runs, this.key, this.window(), Math.max(200, Math.round(this.plot.clientWidth)));
    }

    /** Held within the steps that there are. */
    limits() {
        const [first, last] = extent(this.runs);
        // Room at the right for a mark on the last step.
        return first === last ? [first - 1, last + 1] : [first, last + (last - first) / 200];
    }

    draw() {
        if (this.runs.every(run => run.curves.count === 0)) {
            this.plot.replaceChildren(el('p', {class: 'missing'}, 'No step has been recorded yet.'));
            return;
        }
        const rows = this.rows();
        const finite = rows.some(row => row.slice(1).some(value => value !== null && !Number.isNaN(value)));
        if (!finite) {
            this.plot.replaceChildren(
                el('p', {class: 'missing'}, `${this.title} is not finite in any of these steps.`));
            return;
        }
        const single = rows.length < 3;
        const number = x => shown(Number(x));
        this.graph = new Dygraph(this.plot, rows, {
            labels: ['step', ...this.runs.map(run => 'run ' + run.index)],
            colors: this.runs.map(run => runColour(run.index)),
            series: Object.fromEntries(
                this.runs.map(run => ['run ' + run.index, {strokePattern: runDash(run.index)}])),
            visibility: this.runs.map(run => !run.hidden),
            connectSeparatedPoints: true,
            legend: 'never',
            strokeWidth: 1.4,
            drawPoints: single,
            pointSize: 4,
            highlightCircleSize: 4,
            dateWindow: this.window() ?? this.limits(),
            logscale: view.logarithmic && this.key !== 'clip',
            gridLineColor: styleOf('grid'),
            axisLineColor: styleOf('rule'),
            axisLabelFontSize: 11,
            gridLineWidth: 1,
            xRangePad: 4,
            yRangePad: 10,
            rightGap: 8,
            resizable: 'passive',
            animatedZooms: false,
            axes: {
                x: {
                    axisLabelFormatter: x => Number.isInteger(x) ? grouped(x) : '',
                    pixelsPerLabel: 64,
                    axisLabelWidth: 64
                },
                y: {axisLabelFormatter: number, axisLabelWidth: 62, pixelsPerLabel: 34}
            },
            underlayCallback: (context, area, graph) =>
                drawEvents(context, area, graph, this.shownRuns(), this.eventStep),
            drawCallback: graph => this.onDraw(graph),
            highlightCallback: (event, step) => showAt(step, this),
            unhighlightCallback: () => showAt(null, this),
            clickCallback: (event, x) => this.onClick(x),
        });
    }

    onDraw(graph) {
        if (this.key === 'loss') drawEvals(graph.hidden_ctx_, graph.getArea(), graph, this.shownRuns());
        if (!document.documentElement.dataset.firstChart)
            document.documentElement.dataset.firstChart = Math.round(performance.now());
        if (this.own || this.busy) return;
        const [a, b] = graph.xAxisRange(), [first, last] = extent(this.runs);
        const next = a <= first && b >= last ? null : [a, b];
        if (String(next) !== String(view.window)) setWindow(next);
    }

    refresh() {
        if (!this.graph) return;
        this.busy = true;
        this.graph.updateOptions({
            file: this.rows(),
            dateWindow: this.window() ?? this.limits(),
            visibility: this.runs.map(run => !run.hidden)
        });
        this.busy = false;
    }

    rebuild() {
        this.graph?.destroy();
        this.graph = null;
        this.plot.replaceChildren();
        this.draw();
    }

    onClick(x) {
        const [a, b] = this.graph.xAxisRange(), near = 6 * (b - a) / this.graph.getArea().w;
        let best = null;
        for (const run of this.shownRuns())
            for (const event of run.events)
                if (event.severity !== 'note' && Math.abs(event.step - x) <= near &&
                    (!best || Math.abs(event.step - x) < Math.abs(best.event.step - x)))
                    best = {run, event};
        if (best) goToEvent(best.run, best.event);
    }

    onKey(event) {
        if (!this.graph || event.ctrlKey || event.metaKey || event.altKey) return;
        const [first, last] = this.limits(), [a, b] = this.graph.xAxisRange();
        const within = (from, to) => {
            const width = Math.min(to - from, last - first),
                  left = Math.min(Math.max(from, first), last - width);
            const next = width >= last - first ? null : [left, left + width];
            if (this.own) this.own = next ?? [first, last], this.refresh();
            else setWindow(next);
        };
        const middle =
            this.cursor !== null && this.cursor >= a && this.cursor <= b ? this.cursor : (a + b) / 2;
        const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
        if (move && event.shiftKey) within(a + move * (b - a) / 5, b + move * (b - a) / 5);
        else if (move || event.key === 'Home' || event.key === 'End') {
            const run = this.shownRuns()[0];
            if (!run) return;
            const steps = run.steps(), from = lowerBound(steps, a),
                  to = Math.max(from, lowerBound(steps, b + 1) - 1);
            const stride = Math.max(1, Math.round((to - from) / 200));
            let i = event.key === 'Home' ? from :
                event.key === 'End'      ? to :
                this.cursor === null     ? (move > 0 ? from : to) :
                                           nearest(steps, this.cursor) + move * stride;
            i = Math.min(Math.max(i, from), to);
            this.cursor = steps[i];
            showAt(steps[i], this);
            say(`step ${steps[i]}: ${this.readout.textContent}`);
        } else if (event.key === '+' || event.key === '=') within(middle - (b - a) / 4, middle + (b - a) / 4);
        else if (event.key === '-') within(middle - (b - a), middle + (b - a));
        else if (event.key === '0') within(first, last);
        else return;
        event.preventDefault();
    }

    /** Values of the runs at a step, in words beside the title; null: none. */
    readAt(step) {
        if (!this.graph) return;
        if (step === null) {
            this.readout.textContent = '';
            this.graph.clearSelection();
            return;
        }
        const parts = this.shownRuns().filter(run => run.curves.count > 0).map(run => {
            const i = nearest(run.steps(), step);
            return [run, run.steps()[i], run.series(this.key)[i]];
        });
        this.readout.replaceChildren(
            'step ' + grouped(step),
            ...parts.map(
                ([run, , value]) =>
                    el('span', {}, el('i', {class: 'swatch', style: `background:${runColour(run.index)}`}),
                       shown(value))));
        // Pixels between two rows are few: the row at or before the step is near enough.
        this.graph.setSelection(rowAt(this.graph, step));
    }
}

let pending = false;
function onNextFrame(act) {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
        pending = false;
        act();
    });
}

/** Moves all charts and heat maps to these steps. */
function setWindow(window) {
    view.window = window;
    onNextFrame(() => {
        for (const chart of view.charts) chart.refresh();
        for (const follow of view.followers) follow();
    });
}

let reading = false;
function showAt(step, from) {
    if (reading) return;
    reading = true;
    for (const chart of from.own ? [from] : view.charts) chart.readAt(step);
    reading = false;
}

function drawCurves(runs) {
    for (const chart of view.charts) chart.graph?.destroy();
    view.charts = [];
    const grid = byId('curve-grid');
    grid.replaceChildren();
    const isSeen = new IntersectionObserver(entries => {
        for (const entry of entries) {
            const chart = view.charts.find(one => one.plot === entry.target);
            if (entry.isIntersecting && chart && !chart.graph) chart.draw(), isSeen.unobserve(entry.target);
        }
    }, {rootMargin: '300px'});
    for (const [key, title, unit] of quantities) {
        const chart = new Curve(grid, key, title, unit, runs);
        view.charts.push(chart);
        isSeen.observe(chart.plot);
    }
    const thinner = runs.filter(run => run.curves.kept < run.curves.count);
    byId('curve-hint').textContent =
        'Drag to zoom, shift-drag to pan, double-click to see all; from the keyboard + \u2212 0 and the arrow keys. ' +
        'Triangles are alarms, diamonds warnings: click one for its evidence. Circles on the loss are held-out data.' +
        thinner
            .map(
                run => ` Of ${grouped(run.curves.count)} steps of ${run.name}, ${
                           grouped(run.curves.kept)} are here: the lowest and ` +
                    'highest value of each stretch, and every step around warnings and alarms.')
            .join('');
    const zoom = factor => {
        const [first, last] = view.charts[0].limits(), [a, b] = view.window ?? [first, last];
        const middle = (a + b) / 2, half = (b - a) / 2 * factor;
        setWindow(
            half * 2 >= last - first ? null :
                                       [Math.max(first, middle - half), Math.min(last, middle + half)]);
    };
    byId('curve-controls')
        .replaceChildren(
            toggle(
                'Logarithmic', view.logarithmic,
                on => {
                    view.logarithmic = on;
                    view.charts.forEach(chart => chart.graph && chart.rebuild());
                }),
            el('button', {type: 'button', 'aria-label': 'Zoom in', onclick: () => zoom(0.5)}, '+'),
            el('button', {type: 'button', 'aria-label': 'Zoom out', onclick: () => zoom(2)}, '\u2212'),
            el('button', {type: 'button', onclick: () => setWindow(null)}, 'All steps'));
}
