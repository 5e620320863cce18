//! Parses fenced code blocks of Markdown, as far as the book uses them.

/// A fenced code block.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    pub info: String,
    pub text: String,
    /// Line number of the opening fence, counted from 1.
    pub line: usize,
}

/// Returns the blocks of a page. A block in a list is indented; its lines lose that indentation.
pub fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let mut found = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let Some((indent, fence, info)) = opening(line) else {
            continue;
        };
        let mut text = String::new();
        loop {
            let Some((_, line)) = lines.next() else {
                return Err(format!("line {}: the block is not closed", index + 1));
            };
            if line.trim() == fence {
                break;
            }
            let space = line.len() - line.trim_start().len();
            text.push_str(&line[space.min(indent)..]);
            text.push('\n');
        }
        found.push(Block {
            info: info.to_owned(),
            text,
            line: index + 1,
        });
    }
    Ok(found)
}

/// Returns indentation, fence and info string of a line that opens a block.
fn opening(line: &str) -> Option<(usize, &str, &str)> {
    let trimmed = line.trim_start();
    let ticks = trimmed.len() - trimmed.trim_start_matches('`').len();
    (ticks >= 3).then(|| (line.len() - trimmed.len(), &trimmed[..ticks], trimmed[ticks..].trim()))
}
