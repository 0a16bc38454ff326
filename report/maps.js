// What heat maps show: sites, tensors and heads by step, and the exponents of one site.

/** What is chosen of the heat maps, kept while data is renewed. */
const mapChoice = {
    run: 0,
    quantity: 'RMS',
    axis: 'forward',
    log: null
};
const exponentChoice = {
    run: 0,
    site: null
};

function drawMaps(runs) {
    const controls = byId('map-controls'), place = byId('map');
    const usable = runs.filter(run => run.maps.maps.length > 0);
    if (usable.length === 0) {
        controls.replaceChildren();
        place.replaceChildren(el(
            'p', {class: 'missing'},
            'Nothing was recorded inside the model. --probes moments records every site at every --probe-every steps.'));
        return;
    }
    const run = usable.find(one => one.index === mapChoice.run) ?? usable[0];
    const again = change => {
        Object.assign(mapChoice, change);
        drawMaps(runs);
    };
    const names = [...new Set(run.maps.maps.map(map => map.quantity))];
    const quantity = names.includes(mapChoice.quantity) ? mapChoice.quantity : names[0];
    const maps = run.maps.maps.filter(map => map.quantity === quantity);
    const plain = axis => axis.replace('cast ', '');
    const map = maps.find(one => plain(one.axis) === plain(mapChoice.axis)) ?? maps[0];
    const axis = run.maps.axes[map.axis], log = mapChoice.log ?? map.log;
    controls.replaceChildren(
        ...(usable.length > 1 ? [choice(
                                    'Run', usable.map(one => [String(one.index), one.name]),
                                    String(run.index), v => again({run: Number(v)}))] :
                                []),
        choice('Quantity', names.map(name => [name, name]), quantity, v => again({quantity: v, log: null})),
        choice(
            'Of', maps.map(one => [one.axis, run.maps.axes[one.axis].title]), map.axis,
            v => again({axis: v})),
        toggle('Logarithmic', log, on => again({log: on})));
    const values = run.valuesOf(map), steps = run.stepsOf(map.axis);
    if (!values) {
        const what = {'non-finite values': 'No value was NaN or infinite'}[quantity] ??
            (quantity.startsWith('share') ? 'No value was' + quantity.replace('share', '') :
                                            `${quantity} is zero`);
        place.replaceChildren(
            el('p', {class: 'missing'},
               `${what} at any of these ${axis.rows.length} rows, in the ${
                   steps.length} recorded steps looked at.`));
        return;
    }
    const columns = steps.length;
    const heat = new HeatMap(place, {
        title: quantity,
        steps,
        rows: axis.rows,
        log,
        events: run.events,
        groups: axis.layers.map(
            (layer, r) => layer >= 0     ? 'h.' + layer :
                r < axis.rows.length / 2 ? 'start' :
                                           'end'),
        valueAt: (row, column) => values[row * columns + column],
        note: `${columns} recorded steps, each as it was, up to the next`
    });
    mapChoice.shown = heat;
}

function drawExponents(runs, formats) {
    const controls = byId('exponent-controls'), place = byId('exponent-map');
    const usable = runs.filter(run => run.exponents.sites.length > 0);
    if (usable.length === 0) {
        controls.replaceChildren();
        place.replaceChildren(
            el('p', {class: 'missing'},
               'No histograms of exponents were recorded. --probes full records them.'));
        return;
    }
    const run = usable.find(one => one.index === exponentChoice.run) ?? usable[0],
          sites = run.exponents.sites;
    const again = change => {
        Object.assign(exponentChoice, change);
        drawExponents(runs, formats);
    };
    const keyOf = site => site.phase + '|' + site.name;
    const site = sites.find(one => keyOf(one) === exponentChoice.site) ?? sites[0];
    const select = choice('Site', [], '', v => again({site: v}));
    for (const phase of new Set(sites.map(one => one.phase)))
        select.lastChild.append(
            el('optgroup', {label: phase},
               ...sites.filter(one => one.phase === phase)
                   .map(one => el('option', {value: keyOf(one), selected: one === site}, one.name))));
    controls.replaceChildren(
        ...(usable.length > 1 ? [choice(
                                    'Run', usable.map(one => [String(one.index), one.name]),
                                    String(run.index), v => again({run: Number(v)}))] :
                                []),
        select);
    const steps = integersOf(run.exponents.steps), shares = bytesOf(site.shares),
          high = site.low + site.bins - 1;
    const rows = Array.from(
        {length: site.bins},
        (_, r) => '2' +
            String(high - r).replace(
                /[-0-9]/g,
                c => c === '-' ? '\u207b' :
                                 '\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079'[c]));
    exponentChoice.shown = new HeatMap(place, {
        title: `Exponents of ${site.name}`,
        steps,
        rows,
        groups: rows.map(() => ''),
        log: true,
        events: run.events,
        valueAt: (row, column) => {
            const byte = shares[column * site.bins + site.bins - 1 - row];
            return byte === 0 ? NaN : 2 ** ((byte - 255) / 8);
        },
        bars: Object.entries(formats).map(
            ([name, [least, most]]) => ({name, from: high + 1 - most, to: high + 1 - least})),
        empty: 'none',
        note: 'share of the values other than zero; bars at the right: what each format can hold'
    });
}
