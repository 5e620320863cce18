//! Wraps the long lines of a Markdown page between words. Tables, headings, comments and code blocks stay as they are.

const LINE_MAX: usize = 120;

pub fn wrapped(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    let mut is_code = false;
    for line in page.lines() {
        let start = line.trim_start();
        is_code ^= start.starts_with("```");
        if is_code || start.starts_with(['|', '#']) || start.starts_with("<!--") || line.chars().count() <= LINE_MAX {
            text.push_str(line.trim_end());
        } else {
            wrap_line(line, &mut text);
        }
        text.push('\n');
    }
    text
}

fn wrap_line(line: &str, text: &mut String) {
    let content = line.trim_start().strip_prefix("- ").unwrap_or(line.trim_start());
    let indent = " ".repeat(line.len() - content.len());
    text.push_str(&line[..indent.len()]);
    let mut length = indent.len();
    for (index, word) in words(content).into_iter().enumerate() {
        let word_length = word.chars().count();
        if index > 0 && length + 1 + word_length > LINE_MAX {
            text.push('\n');
            text.push_str(&indent);
            length = indent.len();
        } else if index > 0 {
            text.push(' ');
            length += 1;
        }
        text.push_str(word);
        length += word_length;
    }
}

/// Splits at spaces outside of code.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut is_code) = (0, false);
    for (at, character) in line.char_indices() {
        match character {
            '`' => is_code = !is_code,
            ' ' if !is_code => {
                words.push(&line[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    words.push(&line[start..]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_items_continue_with_indentation() {
        let item = format!("- `a`: {}{}", "word ".repeat(30), "`code with spaces`");
        let page = wrapped(&item);
        assert!(page.lines().all(|line| line.len() <= LINE_MAX));
        assert!(
            page.lines()
                .skip(1)
                .all(|line| line.starts_with("  word") || line.starts_with("  `code"))
        );
        assert!(page.contains("`code with spaces`"));
    }

    #[test]
    fn tables_and_code_keep_their_lines() {
        let long = "x ".repeat(100);
        let page = format!("| {long}|\n\n```text\n{}\n```\n", long.trim_end());
        assert_eq!(wrapped(&page), page);
    }
}
