// The evidence of one event: where the curves were, what moved first, which data it was, and what to type
// next.

/** What the heat maps hold of the site that an event is about: sparklines of the recorded steps around it. */
function siteOf(run, event) {
    const name = event.site.replace(/ (output|value|update)$/, '').replace(/ (forward|backward|update)$/, '');
    const wanted = ['RMS', 'absmax', 'update ratio', 'RMS_t', 'gradient RMS', 'entropy', 'maximum logit'],
          items = [];
    for (const map of run.maps.maps) {
        const axis = run.maps.axes[map.axis],
              row = axis.rows.findIndex(label => label === name || label === event.site);
        const told = / (forward|backward|update)/.exec(event.site)?.[1];
        if (row < 0 || !wanted.includes(map.quantity) || (told && !(axis.title.startsWith(told)))) continue;
        const steps = run.stepsOf(map.axis), values = run.valuesOf(map),
              at = lowerBound(steps, event.step + 1);
        if (!values) continue;
        const from = Math.max(0, at - 30), to = Math.min(steps.length, at + 10),
              here = nearest(steps, event.step), value = values[row * steps.length + here];
        const series = {
            name,
            quantity: map.quantity,
            step: null,
            log: map.log,
            steps: [...steps.slice(from, to)],
            values: [...values.slice(row * steps.length + from, row * steps.length + to)].map(
                x => Number.isFinite(x) ? x : null)
        };
        items.push(
            el('li', {},
               el('div', {class: 'mover'}, el('span', {class: 'when'}, 'step ' + grouped(steps[here])),
                  el('span', {class: 'what'}, el('strong', {}, map.quantity), ' ' + shown(value), el('br'),
                     el('span', {class: 'unit'}, axis.title)),
                  sparkline(series, event.step, runColour(run.index)))));
    }
    return items.length === 0 ? [] : [
        el('h3', {}, name),
        el('p', {class: 'hint'}, 'In the recorded steps around the event, which is the line.'),
        el('ol', {class: 'movers'}, ...items)
    ];
}

/** A small curve with a line where it left its past and one at the event. */
function sparkline(mover, eventStep, colour) {
    const width = 260, height = 44, pad = 3;
    const points = mover.steps.map((step, i) => [step, mover.values[i]])
                       .filter(([, value]) => value !== null && (!mover.log || value > 0));
    if (points.length < 2) return el('span', {class: 'unit'}, 'too few finite values to draw');
    const f = mover.log ? Math.log : x => x, ys = points.map(([, value]) => f(value));
    const low = Math.min(...ys), high = Math.max(...ys), first = points[0][0],
          last = Math.max(eventStep, points[points.length - 1][0]);
    const x = step => pad + (step - first) / Math.max(1, last - first) * (width - 2 * pad);
    const y = value =>
        height - pad - (high > low ? (f(value) - low) / (high - low) : 0.5) * (height - 2 * pad);
    const line = (step, kind) => el('line', {x1: x(step), x2: x(step), y1: 0, y2: height, class: kind});
    return el(
        'svg', {
            viewBox: `0 0 ${width} ${height}`,
            width,
            height,
            role: 'img',
            class: 'spark',
            'aria-label': `${mover.name} ${mover.quantity} from step ${first} to ${last}`
        },
        ...(mover.step === null ? [] : [line(mover.step, 'left')]), line(eventStep, 'event'), el('path', {
            d: 'M' + points.map(([step, value]) => x(step).toFixed(1) + ',' + y(value).toFixed(1)).join('L'),
            fill: 'none',
            stroke: colour,
            'stroke-width': 1.5
        }));
}

function moversOf(run, event, movers) {
    const title = el('h3', {}, 'What moved first');
    if (!movers)
        return [
            title,
            el('p', {class: 'missing'},
               'This is worked out for the first steps with alarms, warnings and notes alone; this event is not among them.')
        ];
    if (movers.list.length === 0)
        return [
            title,
            el('p', {class: 'missing'},
               movers.series <= 3 ?
                   'Nothing was recorded inside the model, and loss and norms stayed within their own past up to this step.' :
                   `None of ${grouped(movers.series)} recorded series left its own past between step ${
                       grouped(movers.from)} and this one.`)
        ];
    const rows = movers.list.map(
        m =>
            el('li', {},
               el('div', {class: 'mover'}, el('span', {class: 'when'}, 'step ' + grouped(m.step)),
                  el('span', {class: 'what'}, el('strong', {}, m.name), ' ' + m.quantity, el('br'),
                     el('span', {class: 'unit'},
                        m.value === null ? `stopped being finite; ${shown(m.baseline)} before` :
                                           `${shown(m.baseline)} \u2192 ${shown(m.value)} there, ${
                                               shown(m.last)} at the event` +
                                (m.score === null ?
                                     '' :
                                     `; ${Math.abs(m.score).toFixed(0)} times its usual spread`))),
                  sparkline(m, event.step, runColour(run.index)))));
    return [
        title,
        el('p', {class: 'hint'},
           `Of ${grouped(movers.series)} recorded series, from step ${
               grouped(movers.from)} on, in the order in which each left its own past ` +
               '(median and spread of the 24 values before) and stayed out. Sites are recorded less often than loss and norms, so the order within one interval is open.' +
               (movers.left > movers.list.length ?
                    ` ${grouped(movers.left)} had left by then; these were the first.` :
                    '')),
        el('ol', {class: 'movers'}, ...rows)
    ];
}

function placesOf(run, event, found) {
    const told = key => run.info?.find(([k]) => k === key)?.[1], data = told('data');
    // Bytes that are letters are shown as such.
    const token = number => told('vocab') === '256' && number > 32 && number < 127 ?
        `${String.fromCharCode(number)} (${number})` :
        String(number);
    const parts = [
        el('h3', {}, 'Data'),
        ...(data ? [el('p', {class: 'hint'}, 'Sources are numbered from 0 as they stand in ',
                       el('code', {}, data))] :
                   [])
    ];
    const table = (heads, rows) =>
        el('div', {class: 'scroll'},
           el('table', {class: 'numbers'},
              el('thead', {}, el('tr', {}, ...heads.map(h => el('th', {scope: 'col'}, h)))),
              el('tbody', {},
                 ...rows.map(row => el('tr', {}, ...row.map(cell => el('td', {class: 'number'}, cell)))))));
    if (!found || found.losses.rows.length === 0)
        parts.push(el('p', {class: 'missing'}, 'No losses of single tokens were recorded up to here.'));
    else
        parts.push(
            el('h4', {},
               `Largest token losses, step ${grouped(found.losses.step)}` +
                   (found.losses.step === event.step ? '' : ', the last recorded before')),
            table(
                ['Loss', 'Token', 'Micro-batch', 'Row', 'Position', 'Source', 'Document', 'Offset'],
                found.losses.rows.map(
                    ([, micro, row, position, target, loss, source, document, offset]) =>
                        [shown(loss), token(target),
                         ...[micro, row, position, source, document, offset].map(grouped)])));
    if (!found || found.batches.rows.length === 0)
        parts.push(el(
            'p', {class: 'missing'},
            'Which sequences these steps read was not recorded, or is left out of a page with so many events.'));
    else
        parts.push(
            el('h4', {},
               'Sequences of this step, the one before and the one behind' +
                   (found.batches.total > found.batches.rows.length ?
                        `, ${found.batches.rows.length} of ${grouped(found.batches.total)}` :
                        '')),
            table(
                ['Step', 'Micro-batch', 'Row', 'Source', 'Document', 'Offset'],
                found.batches.rows.map(row => row.map(grouped))));
    if (found?.tokens.length > 0)
        parts.push(
            el('h4', {}, 'What its sequences begin with'),
            ...found.tokens.map(
                ([micro, row, tokens]) =>
                    el('p', {class: 'sequence'}, el('span', {class: 'unit'}, `${micro}, ${row} `),
                       el('code', {},
                          told('vocab') === '256' ? new TextDecoder().decode(Uint8Array.from(tokens)) :
                                                    tokens.join(' ')))));
    return parts;
}

function commandsOf(run, event) {
    const lines = [
        [
            `./train replay ${quoted(run.path)} --step ${event.step} --probes full`,
            'the step again, from the checkpoint before it, with every probe on'
        ],
        [`./train locate ${quoted(run.path)} --event ${event.id}`, 'the first place that is wrong'],
    ];
    return [
        el('h3', {}, 'Next'),
        ...lines.map(
            ([line, why]) =>
                el('div', {class: 'command'},
                   el('code', {}, ...line.split(/(?= )/).map(word => el('span', {}, word))),
                   el('button', {
                       type: 'button',
                       'aria-label': 'Copy: ' + line,
                       onclick: async e => {
                           const button = e.currentTarget;
                           try {
                               await navigator.clipboard.writeText(line);
                               button.textContent = 'Copied';
                           } catch {
                               getSelection().selectAllChildren(button.previousElementSibling);
                               button.textContent = 'Selected';
                           }
                           setTimeout(() => {
                               button.textContent = 'Copy';
                           }, 1500);
                       }
                   },
                      'Copy'),
                   el('span', {class: 'unit'}, why)))
    ];
}

let evidenceCharts = [];

function drawEvidence(runs, run, event) {
    for (const chart of evidenceCharts) chart.graph?.destroy();
    evidenceCharts = [];
    const found = run.evidence[event.step], listed = listedEvents(runs),
          at = listed.findIndex(([r, e]) => r === run && e === event);
    const step = (label, by) => {
        const other = at < 0 ? null : listed[at + by];
        return el(
            'button', {type: 'button', disabled: !other, onclick: () => other && goToEvent(...other)}, label);
    };
    let detail = [];
    try {
        detail = Object.entries(JSON.parse(event.detail || '{}'));
    } catch {
        detail = [['detail', event.detail]];
    }
    const fact = (name, value) => [el('dt', {}, name), el('dd', {}, value)];
    const charts = el('div', {class: 'grid three'});
    const heading =
        el('h2', {tabindex: -1, id: 'evidence-title'}, severityOf(event.severity),
           ` at step ${grouped(event.step)}`, runs.length > 1 ? ` of ${run.name}` : '');
    byId('evidence')
        .replaceChildren(
            el('div', {class: 'heading'},
               el('button', {type: 'button', id: 'back', onclick: () => goBack()}, '\u2190 All events'),
               el('div', {class: 'controls'}, step('Previous', -1), step('Next', 1))),
            heading, el('p', {class: 'summary'}, event.summary),
            el('dl', {class: 'facts'}, ...fact('Detector', event.detector), ...fact('Site', event.site),
               ...fact('Expected', shown(event.expected)), ...fact('Seen', shown(event.seen)),
               ...detail.flatMap(
                   ([key, value]) => fact(
                       key,
                       typeof value === 'number'     ? shown(value) :
                           typeof value === 'string' ? value :
                                                       JSON.stringify(value))),
               ...fact('Event', String(event.id))),
            charts,
            el('div', {class: 'columns'},
               el('div', {}, ...moversOf(run, event, found?.movers), ...siteOf(run, event)),
               el('div', {}, ...commandsOf(run, event), ...placesOf(run, event, found))));
    const [first, last] = extent([run]),
                  window = [Math.max(first, event.step - 100), Math.min(last, event.step + 100)];
    if (window[0] >= window[1]) window[1] = window[0] + 1;
    for (const [key, title, unit] of quantities.slice(0, 3)) {
        const chart = new Curve(charts, key, title, unit, [run], [...window]);
        chart.eventStep = event.step;
        evidenceCharts.push(chart);
        chart.draw();
    }
    heading.focus({preventScroll: true});
}
