//! Converts numbers to text in the format of EMQX.
//!
//! There are three formats: `shortest` for JSON (the fewest digits that parse to the same number, with an exponent if
//! that is shorter), `decimals` for `str` and `float2str` (fixed point, trailing zeros removed), and integers.

use std::fmt::Write;

/// Floats from 2^53 on always have an exponent.
const EXPONENT_ALWAYS: f64 = 9_007_199_254_740_992.0;

/// The shortest format of Erlang: `1.0`, `100.0`, `1.0e3`, `1.5e3`, `0.0001`, `1.0e-5`.
pub fn shortest(out: &mut Vec<u8>, float: f64) {
    if float == 0.0 {
        return out.extend_from_slice(b"0.0");
    }
    let mut buffer = FloatBuffer::default();
    // Write one digit before the point, then the exponent: `1.2345e-7`.
    let _ = write!(buffer, "{:e}", float.abs());
    if float < 0.0 {
        out.push(b'-');
    }
    let written = buffer.as_bytes();
    let split = written.iter().position(|byte| *byte == b'e').unwrap_or(written.len());
    let (mantissa, exponent) = written.split_at(split);
    let exponent: i32 = std::str::from_utf8(exponent.get(1..).unwrap_or_default())
        .ok()
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0);
    let mut digits = [0; 24];
    let mut length = 0;
    for digit in mantissa.iter().filter(|byte| **byte != b'.') {
        digits[length] = *digit;
        length += 1;
    }
    write_digits(out, &digits[..length], exponent, float.abs() >= EXPONENT_ALWAYS);
}

/// Writes `digits`, with the point after the first digit, times ten to the `exponent`.
fn write_digits(out: &mut Vec<u8>, digits: &[u8], exponent: i32, always_exponent: bool) {
    let count = digits.len() as i32;
    let point = exponent + 1;
    let exponent_text = exponent.to_string();
    let exponent_cost = exponent_text.len() as i32 + 1 + if count == 1 { 2 } else { 1 };
    let with_exponent = always_exponent
        || (point < 0 && 2 - point > exponent_cost)
        || (point >= count && point - count + 2 > exponent_cost);
    if with_exponent {
        out.push(digits[0]);
        out.push(b'.');
        out.extend_from_slice(if count == 1 { b"0" } else { &digits[1..] });
        out.push(b'e');
        out.extend_from_slice(exponent_text.as_bytes());
    } else if point <= 0 {
        out.extend_from_slice(b"0.");
        out.extend(std::iter::repeat_n(b'0', -point as usize));
        out.extend_from_slice(digits);
    } else if point >= count {
        out.extend_from_slice(digits);
        out.extend(std::iter::repeat_n(b'0', (point - count) as usize));
        out.extend_from_slice(b".0");
    } else {
        out.extend_from_slice(&digits[..point as usize]);
        out.push(b'.');
        out.extend_from_slice(&digits[point as usize..]);
    }
}

/// Fixed point with at most `decimals` digits after the point. At least one digit remains after the point.
pub fn decimals(float: f64, decimals: usize) -> String {
    let mut text = format!("{float:.decimals$}");
    if text.contains('.') {
        text.truncate(text.trim_end_matches('0').len());
        if text.ends_with('.') {
            text.push('0');
        }
    }
    text
}

pub fn integer(out: &mut Vec<u8>, mut int: i128) {
    if let Ok(small) = u64::try_from(int) {
        return unsigned(out, small);
    }
    if int < 0 {
        out.push(b'-');
        if let Ok(small) = u64::try_from(int.unsigned_abs()) {
            return unsigned(out, small);
        }
    }
    let mut digits = Vec::with_capacity(40);
    while int != 0 {
        digits.push(b'0' + (int % 10).unsigned_abs() as u8);
        int /= 10;
    }
    out.extend(digits.iter().rev());
}

fn unsigned(out: &mut Vec<u8>, mut int: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (int % 10) as u8;
        int /= 10;
        if int == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// Parses decimal digits with an optional sign, as in `int('+0010')`.
pub fn parse_integer(text: &[u8]) -> Option<i128> {
    let digits = text.strip_prefix(b"+").or(text.strip_prefix(b"-")).unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses a sign, digits, a point, digits and an optional exponent. The result is finite.
pub fn parse_float(text: &[u8]) -> Option<f64> {
    let is_plain = text
        .iter()
        .all(|byte| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E'));
    let float: f64 = std::str::from_utf8(text).ok().filter(|_| is_plain)?.parse().ok()?;
    float.is_finite().then_some(float)
}

/// A buffer for any float in exponent form, without an allocation.
#[derive(Default)]
struct FloatBuffer {
    bytes: [u8; 32],
    length: usize,
}

impl FloatBuffer {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Write for FloatBuffer {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length + text.len();
        let room = self.bytes.get_mut(self.length..end).ok_or(std::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_have_the_format_of_erlang() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "0.0"),
            (1.0, "1.0"),
            (10.0, "10.0"),
            (300.0, "300.0"),
            (1500.0, "1.5e3"),
            (10000.0, "1.0e4"),
            (0.25, "0.25"),
            (-32.5, "-32.5"),
            (0.0001, "0.0001"),
            (0.00001, "1.0e-5"),
            (1.0e-36, "1.0e-36"),
            (2.4234324e24, "2.4234324e24"),
            (123_456.789, "123456.789"),
            (9_007_199_254_740_993.0, "9.007199254740992e15"),
            (1_234_567_890_123_456_789_012_345.0, "1.2345678901234568e24"),
        ];
        for (float, expected) in cases {
            let mut out = Vec::new();
            shortest(&mut out, float);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn integers_of_all_sizes_are_written() {
        for int in [
            0,
            7,
            -1,
            i128::from(u64::MAX),
            i128::from(u64::MAX) + 1,
            i128::MAX,
            i128::MIN,
        ] {
            let mut out = Vec::new();
            integer(&mut out, int);
            assert_eq!(String::from_utf8(out).unwrap(), int.to_string());
        }
    }
}
