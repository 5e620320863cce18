//! Removes insignificant whitespace from JSON, as ThingsBoard does.

/// Keeps names and values as written, in their order. `json` must be valid JSON.
pub fn compact(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    let (mut is_string, mut is_escaped) = (false, false);
    for c in json.chars() {
        if is_string || !matches!(c, ' ' | '\t' | '\n' | '\r') {
            text.push(c);
        }
        is_string ^= c == '"' && !is_escaped;
        is_escaped = is_string && c == '\\' && !is_escaped;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::compact;

    #[test]
    fn insignificant_whitespace_is_removed() {
        let rows = [
            (
                " { \"b\" : [ 1 , 2.50 ],\r\n\t\"a\": null } ",
                r#"{"b":[1,2.50],"a":null}"#,
            ),
            (r#"" a  b ""#, r#"" a  b ""#),
            (
                r#"{ "a \" : 1" : "\\" , "b" : " \u00e9 \\\" " }"#,
                r#"{"a \" : 1":"\\","b":" \u00e9 \\\" "}"#,
            ),
            ("1e3", "1e3"),
        ];
        for (sent, expected) in rows {
            assert_eq!(compact(sent), expected);
        }
    }
}
