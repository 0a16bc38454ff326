// What stands on a curve besides: events, and evaluations of held-out data.

/** Vertical marks of warnings and alarms, in a chart's own coordinates. */
function drawEvents(context, area, graph, runs, chosen) {
    context.save();
    context.beginPath();
    context.rect(area.x, area.y - 2, area.w, area.h + 2);
    context.clip();
    if (chosen !== undefined) {
        context.fillStyle = styleOf('ground');
        context.fillRect(graph.toDomXCoord(chosen) - 4, area.y, 9, area.h);
    }
    const alarms = new Set(
        runs.flatMap(run => run.events.filter(event => event.severity === 'alarm').map(event => event.step)));
    for (const severity of ['warning', 'alarm']) {
        context.strokeStyle = context.fillStyle = styleOf(severity);
        for (const run of runs) {
            let last = -9;
            for (const event of run.events) {
                if (event.severity !== severity || (severity === 'warning' && alarms.has(event.step)))
                    continue;
                const x = Math.round(graph.toDomXCoord(event.step)) + 0.5;
                if (x < area.x - 4 || x > area.x + area.w + 4 || Math.abs(x - last) < 2) continue;
                last = x;
                context.globalAlpha = severity === 'alarm' ? 0.45 : 0.3;
                context.setLineDash(severity === 'alarm' ? [] : [3, 3]);
                context.beginPath();
                context.moveTo(x, area.y + 7);
                context.lineTo(x, area.y + area.h);
                context.stroke();
                context.globalAlpha = 1;
                context.beginPath();
                if (severity === 'alarm')
                    context.moveTo(x - 4, area.y + 7), context.lineTo(x + 4, area.y + 7),
                        context.lineTo(x, area.y);
                else
                    context.moveTo(x, area.y), context.lineTo(x + 3.5, area.y + 3.5),
                        context.lineTo(x, area.y + 7), context.lineTo(x - 3.5, area.y + 3.5);
                context.fill();
            }
        }
    }
    context.restore();
}

/** Circles where held-out data was evaluated. */
function drawEvals(context, area, graph, runs) {
    context.save();
    context.beginPath();
    context.rect(area.x, area.y - 5, area.w + 5, area.h + 10);
    context.clip();
    for (const run of runs) {
        context.strokeStyle = runColour(run.index);
        context.fillStyle = styleOf('paper');
        for (const [step, , loss] of run.evals) {
            if (loss === null) continue;
            context.beginPath();
            context.arc(graph.toDomXCoord(step), graph.toDomYCoord(loss), 3.5, 0, 2 * Math.PI);
            context.fill();
            context.lineWidth = 1.5;
            context.stroke();
        }
        // Of several sets the last circle of each says which it is.
        const last = new Map(run.evals.map(([step, name, loss]) => [name, [step, loss]]));
        context.fillStyle = styleOf('quiet');
        context.font = '11px ' + styleOf('sans');
        context.textAlign = 'right';
        if (last.size > 1)
            for (const [name, [step, loss]] of last)
                if (loss !== null)
                    context.fillText(name, graph.toDomXCoord(step) - 8, graph.toDomYCoord(loss) - 8);
    }
    context.restore();
}
