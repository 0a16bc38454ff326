// Colours that people with any colour vision tell apart, on light and dark paper. Runs: Okabe and Ito (2008),
// with dashes besides. Heat maps: viridis (van der Walt and Smith, 2015), even in lightness, from nine of its
// colours.

const light = ['#0072b2', '#d55e00', '#009e73', '#a8558a', '#56b4e9', '#b07d00', '#333333'];
const dark = ['#56b4e9', '#f0883e', '#2fc79a', '#dd9cc4', '#9ecbf0', '#e6b93c', '#cccccc'];
const dashes = [null, [7, 3], [2, 2], [9, 3, 2, 3], [4, 4], [12, 4], [1, 3]];

const isDark = () => document.documentElement.dataset.theme === 'dark';
const runColour = index => (isDark() ? dark : light)[index % light.length];
const runDash = index => dashes[index % dashes.length];
const styleOf = name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();

const severities = {
    alarm: {mark: '\u25b2', rank: 0},
    warning: {mark: '\u25c6', rank: 1},
    note: {mark: '\u25cf', rank: 2},
};

const anchors = [
    [68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121],
    [144, 215, 67], [253, 231, 37]
];

/** 256 colours from low to high, three bytes each. */
const viridis = (() => {
    const colours = new Uint8Array(256 * 3);
    for (let i = 0; i < 256; ++i) {
        const at = i / 255 * (anchors.length - 1), k = Math.min(Math.floor(at), anchors.length - 2);
        for (let c = 0; c < 3; ++c)
            colours[3 * i + c] = Math.round(anchors[k][c] + (at - k) * (anchors[k + 1][c] - anchors[k][c]));
    }
    return colours;
})();

/** Paper that was not chosen follows the system's. */
function startTheme(redraw) {
    const system = matchMedia('(prefers-color-scheme: dark)');
    let chosen = null;
    try {
        chosen = localStorage.getItem('wobble theme');
    } catch { /* a file may have no storage */
    }
    const button = byId('theme');
    const apply = () => {
        document.documentElement.dataset.theme = chosen ?? (system.matches ? 'dark' : 'light');
        button.textContent = isDark() ? 'Light' : 'Dark';
        button.setAttribute('aria-label', isDark() ? 'Light paper' : 'Dark paper');
    };
    button.addEventListener('click', () => {
        chosen = isDark() ? 'light' : 'dark';
        try {
            localStorage.setItem('wobble theme', chosen);
        } catch { /* it is forgotten */
        }
        apply();
        redraw();
    });
    system.addEventListener('change', () => {
        apply();
        redraw();
    });
    apply();
}
