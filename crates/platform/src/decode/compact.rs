//! JSON as ThingsBoard passes it on: written anew, without spaces.

/// Names and values stay as they were sent, in their order. `json` is JSON.
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
    fn spaces_go_where_they_mean_nothing() {
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
