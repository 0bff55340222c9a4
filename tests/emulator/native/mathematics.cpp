// Functions of CUDA's mathematics that the C library lacks.
#include <cmath>
#include <limits>

extern "C" double emulated_erfinv(double x) {
    if (x != x || x < -1 || x > 1) return std::numeric_limits<double>::quiet_NaN();
    if (x == 0) return x;
    if (std::fabs(x) == 1) return std::copysign(std::numeric_limits<double>::infinity(), x);
    // A start from the logarithm (Winitzki), then Newton's steps on erf, or on erfc near 1 where erf has no digits left.
    const double a = 0.147, size = std::fabs(x), l = std::log1p(-size) + std::log1p(size), b = 2 / (M_PI * a) + l / 2;
    double y = std::sqrt(std::sqrt(b * b - l / a) - b);
    for (int i = 0; i < 6; i++) {
        const double error = size < 0.5 ? std::erf(y) - size : (1 - size) - std::erfc(y);
        const double slope = 2 / std::sqrt(M_PI) * std::exp(-y * y);
        const double step = error / slope;
        y -= step / (1 + y * step);  // Halley
    }
    return std::copysign(y, x);
}

extern "C" double emulated_sinpi(double x) {
    const double r = std::remainder(x, 2.0);
    if (r == 0 || std::fabs(r) == 1) return std::copysign(0.0, x);
    return std::fabs(r) <= 0.5 ? std::sin(M_PI * r) : std::sin(M_PI * (std::copysign(1.0, r) - r));
}

extern "C" double emulated_cospi(double x) {
    const double r = std::fabs(std::remainder(x, 2.0));
    return r <= 0.25 ? std::cos(M_PI * r) : r < 0.75 ? std::sin(M_PI * (0.5 - r)) : -std::cos(M_PI * (1 - r));
}
