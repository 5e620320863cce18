//! The commands of a page and the output that it shows.

use super::blocks::{Block, blocks};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Commands that the test waits for.
    Run,
    /// A command that starts the server.
    Server,
}

/// One block of commands.
#[derive(Debug)]
pub struct Step {
    pub kind: Kind,
    pub commands: String,
    pub line: usize,
    /// Lines of the output, each with its line on the page.
    pub output: Vec<(usize, String)>,
}

#[derive(Debug)]
pub struct Page {
    /// Path below `docs`.
    pub name: String,
    pub steps: Vec<Step>,
}

impl Page {
    pub fn parse(name: &str, text: &str) -> Result<Page, String> {
        let mut steps: Vec<Step> = Vec::new();
        let mut may_show_output = false;
        for block in blocks(text)? {
            let kind = match block.info.as_str() {
                "sh,run" => Kind::Run,
                "sh,server" => Kind::Server,
                info if info.contains(",file=") => {
                    steps.push(file(&block));
                    may_show_output = false;
                    continue;
                }
                "text,output" => {
                    let step = steps.last_mut().filter(|_| may_show_output).ok_or_else(|| {
                        format!(
                            "line {}: text,output needs an sh,run or sh,server block before it",
                            block.line
                        )
                    })?;
                    step.output = lines(&block);
                    may_show_output = false;
                    continue;
                }
                info if info.contains(",run") || info.contains(",server") || info.contains(",output") => {
                    return Err(format!("line {}: unknown kind of block: {info}", block.line));
                }
                _ => {
                    may_show_output = false;
                    continue;
                }
            };
            steps.push(Step {
                kind,
                commands: block.text,
                line: block.line,
                output: Vec::new(),
            });
            may_show_output = true;
        }
        Ok(Page {
            name: name.to_owned(),
            steps,
        })
    }

    /// Returns whether the page runs a script of the directory `dev`.
    pub fn uses_script(&self, name: &str) -> bool {
        let call = format!("dev/{name} ");
        self.steps.iter().any(|step| step.commands.contains(&call))
    }
}

/// Writes the text of a block to the file that it names.
fn file(block: &Block) -> Step {
    let (_, name) = block.info.split_once(",file=").expect("the caller has checked this");
    Step {
        kind: Kind::Run,
        commands: format!("cat >'{name}' <<'END_OF_THE_BLOCK'\n{}END_OF_THE_BLOCK\n", block.text),
        line: block.line,
        output: Vec::new(),
    }
}

fn lines(block: &Block) -> Vec<(usize, String)> {
    let lines = block.text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| (block.line + 1 + index, line.trim().to_owned()))
        .collect()
}

/// Returns whether a line of the output contains the printed line. `…` in the printed line matches any text.
pub fn matches(printed: &str, line: &str) -> bool {
    let mut rest = line;
    printed.split('…').all(|part| {
        let part = part.trim();
        match rest.find(part) {
            Some(start) => {
                rest = &rest[start + part.len()..];
                true
            }
            None => false,
        }
    })
}
