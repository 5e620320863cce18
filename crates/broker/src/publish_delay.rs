//! The topic prefix of delayed messages.

/// Delay in a topic name.
pub enum PublishDelay<'a> {
    None,
    Seconds(u32, &'a str),
    Malformed,
}

/// Parses `$delayed/{seconds}/{topic}`.
pub fn strip_delay(topic: &str) -> PublishDelay<'_> {
    let Some(rest) = topic.strip_prefix("$delayed/") else {
        return PublishDelay::None;
    };
    match rest.split_once('/') {
        Some((seconds, topic)) if !topic.is_empty() => match seconds.parse() {
            Ok(seconds) => PublishDelay::Seconds(seconds, topic),
            Err(_) => PublishDelay::Malformed,
        },
        _ => PublishDelay::Malformed,
    }
}
