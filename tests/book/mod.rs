//! Runs the commands of the book and compares their output with the printed one.
//!
//! A page marks commands with the info string of a fenced block:
//!
//! | info string | meaning |
//! |---|---|
//! | `sh,run` | commands, run exactly as printed |
//! | `sh,server` | a command that starts the server in the background; the next block runs when the server is
//!   ready |
//! | `sql,file=NAME`, `json,file=NAME` … | text of a file that later blocks read; the page shows it without a command |
//! | `text,output` | output of the previous block: these lines occur in this order; `…` matches any text in a line |
//!
//! All blocks of a page run in one bash, in an empty directory and a network namespace of their own. So pages use the
//! default ports. A page that does not begin with `sh,server` gets a server with default settings. An `sh,server` block
//! stops the running server first. A command that fails makes the page fail.
//!
//! `tidewire` is the program under test. The directory stands for a clone of the repository: `dev` leads to the scripts
//! and `make run ARGS=…` starts the program under test instead of building another one.

mod blocks;
mod page;
mod shell;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::support::shared;
use page::Page;
use shell::Outcome;

/// Pages that run at the same time. Most of them wait for processes.
const PARALLEL_PAGES: usize = 3;

#[test]
fn commands_of_each_page_print_the_shown_output() {
    if !shell::is_supported() {
        println!("skipped: this machine allows no network namespaces");
        return;
    }
    let pages = runnable_pages();
    assert!(
        pages.iter().any(|page| page.name == "get-started/first-message.md"),
        "the first page of the book has no commands to run"
    );
    // The first start installs a server. A page has no network, so it cannot install one.
    for (script, server) in [("kafka", &shared::KAFKA), ("postgres", &shared::POSTGRES)] {
        if pages.iter().any(|page| page.uses_script(script)) {
            server.directory();
        }
    }
    let queue = Mutex::new(pages.into_iter());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL_PAGES {
            scope.spawn(|| {
                while let Some(page) = take(&queue) {
                    if let Err(failure) = shell::run(&page) {
                        failures.lock().unwrap().push(format!("docs/{}: {failure}", page.name));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn take(queue: &Mutex<std::vec::IntoIter<Page>>) -> Option<Page> {
    queue.lock().unwrap().next()
}

#[test]
fn page_with_matching_output_passes() {
    let text = "```sh,run\necho one; echo two 2 three\n```\n\n```text,output\none\ntwo … three\n```\n";
    assert_outcome(text, &Ok(()));
}

#[test]
fn page_with_wrong_output_fails() {
    let text = "text\n\n```sh,run\necho one\n```\n\n```text,output\ntwo\n```\n";
    assert_failure(text, "line 8: the output lacks `two`");
}

#[test]
fn page_with_output_in_the_wrong_order_fails() {
    let text = "```sh,run\necho one; echo two\n```\n\n```text,output\ntwo\none\n```\n";
    assert_failure(text, "line 7: the output lacks `one`");
}

#[test]
fn page_with_a_failing_command_fails() {
    let text = "```sh,run\nfalse\necho on\n```\n";
    assert_failure(text, "line 1: a command failed: false");
}

#[test]
fn page_with_an_unknown_command_fails() {
    assert_failure(
        "```sh,run\ntidewire no-such-command\n```\n",
        "line 1: a command failed: tidewire",
    );
}

#[test]
fn page_whose_server_does_not_start_fails() {
    assert_failure(
        "```sh,server\ntidewire --set mqtt.max_qos=3\n```\n",
        "line 1: the server did not start",
    );
}

#[test]
fn blocks_of_a_page_share_a_shell_and_the_default_ports() {
    let text = "```sh,server\nmake run ARGS=\"--set mqtt.max_qos=1\"\n```\n\n\
        ```sh,run\nNAME=demo/one\ntidewire sub -t $NAME -v -C 1 -E; tidewire sub -t $NAME -v -C 1 &\nsleep 0.3\n```\n\n\
        ```sh,run\ntidewire pub -h 127.0.0.1 -p 1883 -t $NAME -m text\nwait $!\n```\n\n\
        ```text,output\ndemo/one text\n```\n";
    assert_outcome(text, &Ok(()));
}

#[test]
fn named_block_is_a_file_of_the_page() {
    let text = "```json,file=one.json\n{ \"a\": '$HOME' }\n```\n\n```sh,run\ncat one.json\n```\n\n\
        ```text,output\n{ \"a\": '$HOME' }\n```\n";
    assert_outcome(text, &Ok(()));
}

#[test]
fn output_without_a_block_before_is_rejected() {
    let page = Page::parse("x.md", "```text,output\none\n```\n");
    assert_eq!(
        page.err().as_deref(),
        Some("line 1: text,output needs an sh,run or sh,server block before it")
    );
}

#[test]
fn unclosed_block_is_rejected() {
    assert_eq!(
        Page::parse("x.md", "```sh,run\necho\n").err().as_deref(),
        Some("line 1: the block is not closed")
    );
}

#[track_caller]
fn assert_outcome(text: &str, expected: &Outcome) {
    if shell::is_supported() {
        assert_eq!(&shell::run(&Page::parse("test.md", text).unwrap()), expected);
    }
}

#[track_caller]
fn assert_failure(text: &str, expected: &str) {
    if shell::is_supported() {
        let failure = shell::run(&Page::parse("test.md", text).unwrap()).unwrap_err();
        assert!(failure.contains(expected), "unexpected failure: {failure}");
    }
}

/// Pages of the book with commands to run. Pages with malformed blocks fail the test.
fn runnable_pages() -> Vec<Page> {
    let docs = repository().join("docs");
    let mut files = Vec::new();
    find_pages(&docs, &mut files);
    files.sort();
    let mut pages = Vec::new();
    for file in files {
        let name = file.strip_prefix(&docs).unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).unwrap();
        let page = Page::parse(&name, &text).unwrap_or_else(|error| panic!("docs/{name}: {error}"));
        if !page.steps.is_empty() {
            pages.push(page);
        }
    }
    pages
}

fn find_pages(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}
