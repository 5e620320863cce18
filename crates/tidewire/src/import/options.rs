//! Single options of other brokers, by tables: the key there, the key here, and how the value is written.

use std::time::Duration;

use toml::Value;

use super::settings::{Setting, byte_text, bytes, duration_ms};
use super::setup::Setup;
use crate::config::units::format_duration;

/// How a value is converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Flag,
    Number,
    /// A number with a fraction.
    Factor,
    /// A number; `infinity` and, with `zero_is_none`, 0 mean no limit.
    Limit {
        zero_is_none: bool,
    },
    Bytes,
    /// Bytes; 0 and `infinity` mean no limit.
    BytesLimit,
    Duration,
    /// A duration; `infinity`, `disabled` and 0 mean that it is off.
    DurationSwitch,
    /// Seconds or a duration, as `DurationSwitch`.
    Seconds,
    /// One of the texts, with its counterpart.
    Choice(&'static [(&'static str, &'static str)]),
}

pub struct ForeignOption {
    pub from: &'static str,
    pub to: &'static str,
    pub form: Form,
    /// A difference that the report states.
    pub change: Option<&'static str>,
}

pub const fn option(from: &'static str, to: &'static str, form: Form) -> ForeignOption {
    ForeignOption {
        from,
        to,
        form,
        change: None,
    }
}

pub const fn changed(from: &'static str, to: &'static str, form: Form, change: &'static str) -> ForeignOption {
    ForeignOption {
        from,
        to,
        form,
        change: Some(change),
    }
}

/// Imports the options that are set.
pub fn import(root: &Setting<'_>, options: &[ForeignOption], setup: &mut Setup) {
    for option in options {
        let setting = root.at(option.from);
        if !setting.exists() {
            continue;
        }
        let Some(value) = setting.text().and_then(|text| convert(text, option.form)) else {
            setting.refuse(&format!("its value has no counterpart in {}", option.to));
            continue;
        };
        setup.set(option.to, &setting.path, value);
        match option.change {
            Some(change) => setting.changed(option.to, change),
            None => setting.imported(option.to),
        }
    }
}

/// Notes options that have the value of which the effect is that of tidewire.
pub fn same(root: &Setting<'_>, options: &[(&str, &str)]) {
    for (path, value) in options {
        let setting = root.at(path);
        if setting.is(value) {
            setting.imported("as in tidewire");
        }
    }
}

pub fn convert(text: &str, form: Form) -> Option<Value> {
    let is_none = matches!(text, "infinity" | "disabled" | "unlimited");
    let number = || text.parse::<i64>().ok();
    Some(match form {
        Form::Flag => match text {
            "true" | "on" | "yes" | "1" => true.into(),
            "false" | "off" | "no" | "0" => false.into(),
            _ => return None,
        },
        Form::Number => number()?.into(),
        Form::Factor => text.parse::<f64>().ok().filter(|factor| factor.is_finite())?.into(),
        Form::Limit { zero_is_none } => match number() {
            Some(0) if zero_is_none => "unlimited".into(),
            Some(number) => number.into(),
            None if is_none => "unlimited".into(),
            None => return None,
        },
        Form::Bytes => byte_text(bytes(text)?).into(),
        Form::BytesLimit => match bytes(text) {
            Some(0) => "unlimited".into(),
            Some(bytes) => byte_text(bytes).into(),
            None if is_none => "unlimited".into(),
            None => return None,
        },
        Form::Duration => format_duration(Duration::from_millis(duration_ms(text)?)).into(),
        Form::DurationSwitch => switch(duration_ms(text), is_none)?,
        Form::Seconds if is_number(text) => switch(Some(seconds_ms(text)?), is_none)?,
        Form::Seconds => switch(duration_ms(text), is_none)?,
        Form::Choice(choices) => choices.iter().find(|(theirs, _)| *theirs == text)?.1.into(),
    })
}

/// Whether a duration has no unit.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// `None`: negative, or beyond the range of milliseconds.
fn seconds_ms(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(1000)
}

fn switch(ms: Option<u64>, is_none: bool) -> Option<Value> {
    match ms {
        Some(0) => Some("off".into()),
        Some(ms) => Some(format_duration(Duration::from_millis(ms)).into()),
        None => is_none.then(|| "off".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::hocon::Hocon;
    use crate::import::report::Report;

    #[test]
    fn seconds_out_of_range_have_no_counterpart() {
        let text = |value: Option<Value>| value.map(|value| value.to_string().replace('"', ""));
        for (seconds, expected) in [
            ("60", Some("1m")),
            ("90s", Some("1m30s")),
            ("0", Some("off")),
            ("infinity", Some("off")),
            ("-60", None),
            ("-9223372036854775808", None),
            ("9223372036854775807", None),
            ("18446744073709551615", None),
            ("18446744073709551616", None),
        ] {
            assert_eq!(text(convert(seconds, Form::Seconds)).as_deref(), expected, "{seconds}");
        }
        assert_eq!(convert("NaN", Form::Factor), None);
    }

    #[test]
    fn a_negative_duration_is_reported() {
        let hocon = Hocon::parse("f", "a = -60", &|_| Err(String::new())).expect("valid");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let root = Setting::root(&hocon, &report);
        import(
            &root,
            &[option("a", "mqtt.server_keep_alive", Form::Seconds)],
            &mut setup,
        );
        let text = report.text("title");
        assert!(
            text.contains("its value has no counterpart in mqtt.server_keep_alive"),
            "{text}"
        );
        assert!(!setup.has("mqtt.server_keep_alive"));
    }
}
