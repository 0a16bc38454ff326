// The page as a whole: which run is shown, which part; what changes while runs go on.

let report = JSON.parse(byId('data').textContent);
byId('data').textContent = '';  // its text is not needed twice
let runs = report.runs.map(readRun), cameFrom = null;

function drawRuns() {
    byId('runs').replaceChildren(
        ...(runs.length < 2 ?
                [] :
                runs.map(
                    run => toggle(
                        [el('i', {class: 'swatch', style: `background:${runColour(run.index)}`}), run.name],
                        !run.hidden, on => {
                            run.hidden = !on;
                            view.charts.forEach(chart => chart.refresh());
                            drawEventTable(runs);
                        }))));
}

function drawOverview() {
    const info = (run, key) => run.info?.find(([k]) => k === key)?.[1];
    const setting = (run, key) => run.config.find(([, k]) => k === key)?.[2]?.replace(/^"|"$/g, '');
    const facts = [
        [
            'Steps',
            run => grouped(run.summary.steps) +
                (setting(run, 'steps') ? ` of ${grouped(Number(setting(run, 'steps')))}` : '')
        ],
        ['Tokens', run => grouped(run.summary.tokens)],
        ['Last loss', run => run.summary.steps === 0 ? 'none yet' : shown(run.summary.last_loss)],
        ['Lowest loss', run => run.summary.steps === 0 ? 'none yet' : shown(run.summary.best_loss)],
        ['Floor', run => info(run, 'loss_floor') ? shown(Number(info(run, 'loss_floor'))) : null],
        ['Parameters', run => info(run, 'parameters') ? grouped(Number(info(run, 'parameters'))) : null],
        ['Alarms', run => grouped(run.events.filter(e => e.severity === 'alarm').length)],
        ['Warnings', run => grouped(run.events.filter(e => e.severity === 'warning').length)],
        ['Not finite', run => run.summary.not_finite ? grouped(run.summary.not_finite) + ' steps' : null],
        ['Not applied', run => run.summary.not_applied ? grouped(run.summary.not_applied) + ' steps' : null],
        [
            'Probes',
            run => setting(run, 'probes') ? setting(run, 'probes') +
                    (setting(run, 'probes') === 'off' ? '' : `, every ${setting(run, 'probe-every')}`) :
                                                        null
        ],
        ['run.db', run => megabytes(run.summary.bytes)],
    ].filter(([, value]) => runs.some(run => value(run) !== null));
    byId('overview')
        .replaceChildren(
            el('div', {class: 'scroll'},
               el('table', {class: 'overview'},
                  el('thead', {},
                     el('tr', {}, el('th', {scope: 'col'}, 'Run'),
                        ...facts.map(([name]) => el('th', {scope: 'col'}, name)))),
                  el('tbody', {},
                     ...runs.map(
                         run =>
                             el('tr', {},
                                el('th', {scope: 'row', title: run.path},
                                   el('i', {class: 'swatch', style: `background:${runColour(run.index)}`}),
                                   run.name),
                                ...facts.map(([, value]) => el('td', {}, value(run) ?? '\u2013'))))))));
}

function drawConfiguration() {
    const place = byId('configuration-tables');
    const keys = [...new Map(runs.flatMap(run => run.config.map(([group, key]) => [key, group]))).entries()];
    if (keys.length === 0) {
        place.replaceChildren(
            el('p', {class: 'missing'},
               'No configuration was found, neither config.toml nor a copy in run.db.'));
        return;
    }
    const value = (run, key) => run.config.find(([, k]) => k === key)?.[2];
    const table = list =>
        el('div', {class: 'scroll'},
           el('table', {class: 'config'},
              el('thead', {},
                 el('tr', {}, el('th', {scope: 'col'}, 'Option'),
                    ...runs.map(run => el('th', {scope: 'col'}, run.name)))),
              el('tbody', {},
                 ...list.map(
                     ([key]) =>
                         el('tr', {}, el('th', {scope: 'row'}, key),
                            ...runs.map(run => el('td', {}, value(run, key) ?? '\u2013')))))));
    const differs = ([key]) => key !== 'run' && new Set(runs.map(run => value(run, key))).size > 1;
    const different = keys.filter(differs), parts = [];
    if (runs.length > 1)
        parts.push(
            el('h3', {}, 'What differs'),
            different.length ? table(different) :
                               el('p', {class: 'missing'}, 'The runs have the same options.'));
    const groups = [...new Set(keys.map(([, group]) => group))];
    parts.push(
        el('details', {open: runs.length === 1},
           el('summary', {}, runs.length > 1 ? 'All options' : `${keys.length} options`),
           el('div', {class: 'config-groups'},
              ...groups.map(
                  group =>
                      el('div', {class: 'config-group'}, el('h4', {}, group || 'Options'),
                         table(keys.filter(([, g]) => g === group)))))));
    place.replaceChildren(...parts);
}

function drawCost() {
    byId('cost-text')
        .replaceChildren(...runs.map(
            run =>
                el('p', {}, runs.length > 1 ? el('strong', {}, run.name + ': ') : null, run.cost.sentence)));
}

function drawAll() {
    drawRuns();
    drawOverview();
    drawCurves(runs);
    drawEventTable(runs);
    drawMaps(runs);
    drawExponents(runs, report.formats);
    drawConfiguration();
    drawCost();
    byId('made').textContent = `Made ${report.made} by wobble. ` +
        (report.live ? 'Renewed while the run goes on.' : 'This file needs nothing else.');
    view.followers = [
        () => mapChoice.shown?.drawn && mapChoice.shown.draw(),
        () => exponentChoice.shown?.drawn && exponentChoice.shown.draw()
    ];
}

/** Evidence takes the page's place; the way back leads to where one came from. */
function route() {
    const match = /^#event-(\d+)-(\d+)$/.exec(location.hash), run = match && runs[Number(match[1])],
          event = run?.eventById(Number(match[2]));
    const inEvidence = Boolean(event);
    if (inEvidence && byId('evidence').hidden) cameFrom = {scroll: scrollY, hash: match[0].slice(1)};
    byId('evidence').hidden = !inEvidence;
    byId('report').hidden = inEvidence;
    byId('runs').hidden = inEvidence;
    if (inEvidence) {
        if (cameFrom) cameFrom.hash = match[0].slice(1);
        drawEvidence(runs, run, event);
        scrollTo(0, 0);
    } else if (cameFrom) {
        scrollTo(0, cameFrom.scroll);
        document.querySelector(`tr[data-event="${cameFrom.hash}"] a`)?.focus({preventScroll: true});
        cameFrom = null;
    }
}

function goBack() {
    if (byId('evidence').hidden) return;
    const scroll = cameFrom;
    history.pushState(null, '', '#events');
    route();
    if (!scroll) byId('events').scrollIntoView();
}

addEventListener('hashchange', route);
addEventListener('popstate', route);
addEventListener('keydown', event => {
    if (event.key === 'Escape') goBack();
});

/** Asks whether the runs have gone on, and draws what came; zoom and choices stay. */
async function follow() {
    let version = null;
    for (;;) {
        await new Promise(done => setTimeout(done, document.hidden ? 5000 : 2000));
        try {
            const now = await (await fetch('version')).text();
            if (now === version) continue;
            const answer = await fetch('data');
            if (!answer.ok) continue;
            const hidden = runs.map(run => run.hidden);
            report = await answer.json();
            runs = report.runs.map(readRun);
            runs.forEach((run, i) => {
                run.hidden = hidden[i];
            });
            version = now;
            renew();
        } catch {
            byId('made').textContent = 'The server has ended; what is here is what it last said.';
        }
    }
}

function renew() {
    drawOverview();
    for (const chart of view.charts) {
        chart.runs = runs;
        if (chart.graph) chart.refresh();
        else if (chart.plot.querySelector('.missing')) chart.rebuild();
    }
    // What somebody is pointing at, or going through by keyboard, is left alone until they go on.
    if (!byId('event-table').contains(document.activeElement)) drawEventTable(runs);
    for (const [id, draw] of [
             ['map', () => drawMaps(runs)], ['exponent-map', () => drawExponents(runs, report.formats)]]) {
        const place = byId(id).closest('section');
        if (!place.contains(document.activeElement) && !place.matches(':hover')) draw();
    }
    drawCost();
    byId('made').textContent = `Renewed ${report.made}.`;
}

// On paper everything is seen.
addEventListener('beforeprint', () => {
    for (const chart of view.charts)
        if (!chart.graph) chart.draw();
    for (const map of [mapChoice.shown, exponentChoice.shown]) map?.draw();
});

startTheme(() => {
    for (const chart of [...view.charts, ...evidenceCharts])
        if (chart.graph) chart.rebuild();
    drawRuns();
    drawOverview();
    drawEventTable(runs);
    for (const follow_on of view.followers) follow_on();
});
drawAll();
route();
if (report.live) follow();
document.documentElement.dataset.ready = Math.round(performance.now());
