/** The law of the realised risk for distinct scores: given n rows that count, Beta(m, n + 1 - m). */

/** ln of the gamma function, by Stirling's series after stepping up to where it is exact enough. */
function lnGamma(x) {
  let steps = 0;
  let at = x;
  while (at < 12) {
    steps += Math.log(at);
    at += 1;
  }
  const square = at * at;
  const series = 1 / (12 * at) - 1 / (360 * at * square) + 1 / (1260 * at * square * square);
  return (at - 0.5) * Math.log(at) - at + 0.5 * Math.log(2 * Math.PI) + series - steps;
}

/** m: the largest whole number with m / (n + 1) <= alpha; 0 where no finite threshold is valid. */
export function allowed(n, alpha) {
  let m = Math.min(n, Math.floor(alpha * (n + 1)) + 1);
  while (m > 0 && m / (n + 1) > alpha) m -= 1;
  return m;
}

/** Points of the density over where it matters: {x, y}; null where there is no law. */
export function riskLaw(n, alpha, points = 241) {
  const m = allowed(n, alpha);
  if (m === 0) return null;
  const [a, b] = [m, n + 1 - m];
  const mean = a / (a + b);
  const spread = Math.sqrt((mean * (1 - mean)) / (a + b + 1));
  const [low, high] = [Math.max(0, mean - 5 * spread), Math.min(1, mean + 6 * spread)];
  const constant = lnGamma(a + b) - lnGamma(a) - lnGamma(b);
  const x = Array.from({ length: points }, (_, i) => low + ((high - low) * (i + 0.5)) / points);
  const y = x.map((each) => Math.exp(constant + (a - 1) * Math.log(each) + (b - 1) * Math.log1p(-each)));
  return { x, y };
}
