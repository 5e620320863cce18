//! Determines the types of numbers by ThingsBoard's rules. A whole number is a long, unless it has a decimal point and
//! no exponent. Another number is a double if it has at most 16 decimal places. All other numbers, also whole numbers
//! that do not fit 64 bits, become strings of plain digits.

use timeseries::PointValue;

/// Longest plain form of a number such as 1e999. Longer ones keep their original text.
const PLAIN_CHARS_MAX: usize = 400;

/// A decimal number: digits, and how many of them follow the point. A negative scale means that zeros follow.
struct Decimal {
    is_negative: bool,
    digits: Vec<u8>,
    scale: i64,
}

/// `text` is a JSON number, or a string that [`is_castable`].
pub fn typed(text: &str) -> PointValue {
    if !text.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
        return match text.parse() {
            Ok(long) => PointValue::Long(long),
            Err(_) => plain(&Decimal::parse(text), text),
        };
    }
    let has_exponent = text.bytes().any(|byte| matches!(byte, b'e' | b'E'));
    if !has_exponent && text.len() <= 18 {
        // At most 16 decimal places: the common case.
        return text
            .parse()
            .map_or_else(|_| PointValue::String(text.into()), PointValue::Double);
    }
    let decimal = Decimal::parse(text);
    if has_exponent && decimal.is_whole() {
        return decimal
            .to_long()
            .map_or_else(|| plain(&decimal, text), PointValue::Long);
    }
    match text.parse() {
        Ok(double) if decimal.scale <= 16 => PointValue::Double(double),
        _ => plain(&decimal, text),
    }
}

/// Whether ThingsBoard converts a string to a number: digits with at most one point, not at the end, and an optional
/// minus sign.
pub fn is_castable(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text).as_bytes();
    if digits.is_empty() || digits.ends_with(b".") {
        return false;
    }
    let points = digits.iter().filter(|byte| **byte == b'.').count();
    points <= 1 && digits.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
}

fn plain(decimal: &Decimal, text: &str) -> PointValue {
    PointValue::String(decimal.to_plain().unwrap_or_else(|| text.to_owned()).into())
}

impl Decimal {
    fn parse(text: &str) -> Decimal {
        let (is_negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i64 = exponent.parse().unwrap_or(if exponent.starts_with('-') {
            i64::MIN / 4
        } else {
            i64::MAX / 4
        });
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = whole.bytes().chain(fraction.bytes()).skip_while(|byte| *byte == b'0');
        Decimal {
            is_negative,
            digits: digits.collect(),
            scale: i64::try_from(fraction.len())
                .unwrap_or(i64::MAX)
                .saturating_sub(exponent),
        }
    }

    fn is_whole(&self) -> bool {
        let zeros = self.digits.iter().rev().take_while(|digit| **digit == b'0').count();
        self.digits.is_empty() || self.scale <= i64::try_from(zeros).unwrap_or(i64::MAX)
    }

    /// Valid only for whole numbers.
    fn to_long(&self) -> Option<i64> {
        let mut value: i64 = 0;
        let whole = i64::try_from(self.digits.len()).ok()?.saturating_sub(self.scale);
        for place in 0..whole {
            if value == 0 && self.digits.is_empty() {
                break;
            }
            let digit = usize::try_from(place).ok().and_then(|place| self.digits.get(place));
            let digit = i64::from(digit.map_or(0, |digit| digit - b'0'));
            let signed = if self.is_negative { -digit } else { digit };
            value = value.checked_mul(10)?.checked_add(signed)?;
        }
        Some(value)
    }

    fn to_plain(&self) -> Option<String> {
        let zeros = usize::try_from(self.scale.unsigned_abs()).ok()?;
        if self.digits.len().saturating_add(zeros) > PLAIN_CHARS_MAX {
            return None;
        }
        let mut digits = String::from_utf8(self.digits.clone()).ok()?;
        if digits.is_empty() {
            digits.push('0');
        }
        if self.scale <= 0 {
            digits.push_str(&"0".repeat(zeros));
        } else {
            if digits.len() <= zeros {
                digits.insert_str(0, &"0".repeat(zeros - digits.len() + 1));
            }
            digits.insert(digits.len() - zeros, '.');
        }
        if self.is_negative {
            digits.insert(0, '-');
        }
        Some(digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_thingsboards_types() {
        let string = |text: &str| PointValue::String(text.into());
        let cases = [
            ("42", PointValue::Long(42)),
            ("-7", PointValue::Long(-7)),
            ("1.0", PointValue::Double(1.0)),
            ("1E3", PointValue::Long(1000)),
            ("1.5e3", PointValue::Long(1500)),
            ("1.0e0", PointValue::Long(1)),
            ("-2.5E1", PointValue::Long(-25)),
            ("15e-1", PointValue::Double(1.5)),
            ("20e-1", PointValue::Long(2)),
            ("0.0", PointValue::Double(0.0)),
            ("0e5", PointValue::Long(0)),
            ("0e-5", PointValue::Long(0)),
            ("9223372036854775807", PointValue::Long(i64::MAX)),
            ("-9223372036854775808", PointValue::Long(i64::MIN)),
            ("-9223372036854775808e0", PointValue::Long(i64::MIN)),
            ("9223372036854775808", string("9223372036854775808")),
            ("1e19", string("10000000000000000000")),
            ("1e999999999", string("1e999999999")),
            ("0.1234567890123456", PointValue::Double(0.123_456_789_012_345_6)),
            ("0.12345678901234567", string("0.12345678901234567")),
            ("1e-17", string("0.00000000000000001")),
            ("1e-16", PointValue::Double(1e-16)),
            ("3.25", PointValue::Double(3.25)),
            ("007", PointValue::Long(7)),
            ("00.50", PointValue::Double(0.5)),
        ];
        for (text, value) in cases {
            assert_eq!(typed(text), value, "{text}");
        }
    }

    #[test]
    fn castable_strings_are_recognized() {
        for text in ["1", "-1", "1.5", ".5", "-.5", "007"] {
            assert!(is_castable(text), "{text}");
        }
        for text in ["", "-", ".", "1.", "1e3", "+1", "1 ", "0x1", "1.2.3", "--1", "NaN"] {
            assert!(!is_castable(text), "{text}");
        }
    }
}
