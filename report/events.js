// The table of events: filtered, sorted, each row a way to its evidence.

const tableChoice = {
    severities: {alarm: true, warning: true, note: false},
    detector: '',
    order: 'step',
    down: false,
    rows: 20
};

const severityOf = severity =>
    el('span', {class: 'severity ' + severity},
       el('i', {'aria-hidden': 'true'}, severities[severity]?.mark ?? '\u25cf'), ' ', severity);

/** [run, event] that the filters let through, in order. */
function listedEvents(runs) {
    const all = runs.filter(run => !run.hidden).flatMap(run => run.events.map(event => [run, event]));
    const kept = all.filter(
        ([, event]) => tableChoice.severities[event.severity] !== false &&
            (tableChoice.detector === '' || event.detector === tableChoice.detector));
    const keys = {
        step: ([, e]) => e.step,
        severity: ([, e]) => severities[e.severity]?.rank ?? 3,
        detector: ([, e]) => e.detector,
        site: ([, e]) => e.site,
        run: ([r]) => r.index
    };
    const key = keys[tableChoice.order], sign = tableChoice.down ? -1 : 1;
    return kept.sort((a, b) => {
        const x = key(a), y = key(b);
        return sign * (x < y ? -1 : x > y ? 1 : 0) || a[1].step - b[1].step || a[1].id - b[1].id;
    });
}

function drawEventTable(runs) {
    const controls = byId('event-controls'), place = byId('event-table');
    const total = runs.reduce((sum, run) => sum + run.events.length, 0);
    if (total === 0) {
        controls.replaceChildren();
        place.replaceChildren(
            el('p', {class: 'missing'},
               runs.length > 1 ? 'The detectors raised nothing in these runs.' :
                                 'The detectors raised nothing in this run.'));
        return;
    }
    // Where there is nothing worse, notes are what there is to see.
    if (!tableChoice.seen && runs.every(run => run.events.every(event => event.severity === 'note')))
        tableChoice.severities.note = true;
    tableChoice.seen = true;
    const counts = severity =>
        runs.filter(run => !run.hidden)
            .reduce((sum, run) => sum + run.events.filter(e => e.severity === severity).length, 0);
    const detectors = [...new Set(runs.flatMap(run => run.events.map(e => e.detector)))].sort();
    const again = () => drawEventTable(runs);
    controls.replaceChildren(
        ...Object.keys(severities)
            .map(
                severity => toggle(
                    [severityOf(severity), ` ${grouped(counts(severity))}`], tableChoice.severities[severity],
                    on => {
                        tableChoice.severities[severity] = on;
                        fill();
                    })),
        choice('Detector', [['', 'all'], ...detectors.map(d => [d, d])], tableChoice.detector, v => {
            tableChoice.detector = v;
            fill();
        }));
    const fill = () => {
        const listed = listedEvents(runs), several = runs.length > 1;
        const heads = [
            ['step', 'Step'], ['severity', 'Severity'], ...(several ? [['run', 'Run']] : []),
            ['detector', 'Detector'], ['site', 'Site'], [null, 'What it saw']
        ];
        const head =
            el('tr', {},
               ...heads.map(
                   ([key, title]) => key === null ?
                       el('th', {scope: 'col'}, title) :
                       el('th', {
                           scope: 'col',
                           'aria-sort': tableChoice.order === key ?
                               (tableChoice.down ? 'descending' : 'ascending') :
                               'none'
                       },
                          el('button', {
                              type: 'button',
                              class: 'sort',
                              onclick: () => {
                                  tableChoice.down = tableChoice.order === key && !tableChoice.down;
                                  tableChoice.order = key;
                                  fill();
                                  place.querySelector(`[data-sort="${key}"]`)?.focus();
                              },
                              'data-sort': key
                          },
                             title,
                             el('i', {'aria-hidden': 'true'},
                                tableChoice.order !== key ? '' :
                                    tableChoice.down      ? ' \u2193' :
                                                            ' \u2191')))));
        const rows =
            listed.slice(0, tableChoice.rows)
                .map(
                    ([run, event]) => el(
                        'tr', {
                            class: 'link',
                            'data-event': hashOf(run, event),
                            onclick: () => goToEvent(run, event)
                        },
                        el('td', {class: 'number'},
                           el('a', {
                               href: '#' + hashOf(run, event),
                               'aria-label': `Evidence of event ${event.id} at step ${event.step}`
                           },
                              grouped(event.step))),
                        el('td', {}, severityOf(event.severity)),
                        several ? el('td', {},
                                     el('i', {class: 'swatch', style: `background:${runColour(run.index)}`}),
                                     run.name) :
                                  null,
                        el('td', {}, event.detector), el('td', {class: 'site'}, event.site),
                        el('td', {}, event.summary)));
        const rest = listed.length - rows.length;
        place.replaceChildren(
            listed.length === 0 ?
                el('p', {class: 'missing'}, 'No event passes these filters.') :
                el('div', {class: 'scroll'},
                   el('table', {class: 'events'}, el('thead', {}, head), el('tbody', {}, ...rows))));
        if (rest > 0)
            place.append(
                el('button', {
                    type: 'button',
                    onclick: () => {
                        tableChoice.rows += 500;
                        fill();
                    }
                },
                   `Show ${grouped(Math.min(rest, 500))} more of ${grouped(rest)}`));
        for (const run of runs)
            if (run.events_left_out > 0)
                place.append(el(
                    'p', {class: 'hint'},
                    `${run.name} has ${
                        grouped(run.events_left_out)} more events, the mildest and latest; ./train events ${
                        quoted(run.path)} lists all.`));
    };
    fill();
}

const hashOf = (run, event) => `event-${run.index}-${event.id}`;
const quoted = path => /^[\w.\/:=@%+-]+$/.test(path) ? path : '\'' + path.replace(/'/g, '\'\\\'\'') + '\'';

function goToEvent(run, event) { location.hash = hashOf(run, event); }
