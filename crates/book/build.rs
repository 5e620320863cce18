//! Renders the book in `docs/` to HTML, compresses all files with gzip, and writes the table `OUT_DIR/files.rs`.
//!
//! `docs/SUMMARY.md` is mdBook's table of contents and names all pages. Anchors have the same names as mdBook's.
//! Links are not checked here: `dev/lint` does that, so that a broken link does not break the build of the server.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};
use serde_json::json;

const DOCS: &str = "../../docs";
const STYLE: &str = include_str!("theme/book.css");
const SCRIPT: &str = include_str!("theme/book.js");

/// The page with the table of contents. The script shows the table at the side of each page.
const CONTENTS_PAGE: &str = "contents.html";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A line of the table of contents.
enum Entry {
    Part(String),
    Page(Page),
}

struct Page {
    title: String,
    /// Path of the source below `docs/`.
    source: String,
    /// Nesting level, from 0.
    depth: usize,
}

impl Page {
    /// Path of the rendered page.
    fn target(&self) -> String {
        self.source.replace(".md", ".html")
    }
}

/// The rendered body of a page and its sections for the search index.
struct Body {
    html: String,
    sections: Vec<Section>,
}

struct Section {
    heading: String,
    anchor: String,
    text: String,
}

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed={DOCS}");
    println!("cargo::rerun-if-changed=theme");
    println!("cargo::rerun-if-changed=build.rs");
    let summary = read(&Path::new(DOCS).join("SUMMARY.md"))?;
    let contents: Vec<Entry> = summary.lines().filter_map(entry).collect();
    let pages: Vec<&Page> = contents
        .iter()
        .filter_map(|entry| match entry {
            Entry::Page(page) => Some(page),
            Entry::Part(_) => None,
        })
        .collect();
    let mut files = vec![
        ("book.css".to_owned(), STYLE.as_bytes().to_vec()),
        ("book.js".to_owned(), SCRIPT.as_bytes().to_vec()),
    ];
    let mut index = Vec::new();
    for (position, page) in pages.iter().enumerate() {
        let body = render(&read(&Path::new(DOCS).join(&page.source))?);
        let next = pages.get(position + 1).copied();
        let previous = position.checked_sub(1).map(|position| pages[position]);
        let target = page.target();
        for section in body.sections {
            let path = match section.anchor.is_empty() {
                true => target.clone(),
                false => format!("{target}#{}", section.anchor),
            };
            index.push(json!({
                "page": page.title, "heading": section.heading, "path": path, "text": section.text,
            }));
        }
        let html = frame(page, &body.html, previous, next);
        files.push((target, html.into_bytes()));
    }
    files.push((CONTENTS_PAGE.to_owned(), contents_page(&contents).into_bytes()));
    files.push(("search.json".to_owned(), serde_json::to_vec(&index)?));
    for picture in pictures()? {
        let name = picture
            .strip_prefix(DOCS)?
            .to_str()
            .ok_or("the name of a picture is not UTF-8")?;
        files.push((name.to_owned(), fs::read(&picture)?));
    }
    files.sort();
    embed(&files)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()).into())
}

/// Reads one line of SUMMARY.md: `# Part`, or `- [Title](path.md)` indented by two spaces per level.
fn entry(line: &str) -> Option<Entry> {
    if let Some(part) = line.strip_prefix("# ") {
        return (part != "Summary").then(|| Entry::Part(part.to_owned()));
    }
    let item = line.trim_start();
    let depth = (line.len() - item.len()) / 2;
    let (title, rest) = item
        .strip_prefix("- ")
        .unwrap_or(item)
        .strip_prefix('[')?
        .split_once("](")?;
    let source = rest.strip_suffix(')')?.trim_start_matches("./");
    Some(Entry::Page(Page {
        title: title.to_owned(),
        source: source.to_owned(),
        depth,
    }))
}

/// Renders Markdown with tables. Headings get anchors, and links to sources become links to pages.
fn render(markdown: &str) -> Body {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut events: Vec<Event> = Parser::new_ext(markdown, options).collect();
    let mut sections = vec![Section {
        heading: String::new(),
        anchor: String::new(),
        text: String::new(),
    }];
    let mut used = HashMap::new();
    let mut is_in_heading = false;
    for position in 0..events.len() {
        match &events[position] {
            Event::Start(Tag::Heading { .. }) => {
                is_in_heading = true;
                let heading = heading_text(&events[position + 1..]);
                let anchor = anchor(&heading, &mut used);
                sections.push(Section {
                    heading,
                    anchor: anchor.clone(),
                    text: String::new(),
                });
                if let Event::Start(Tag::Heading { id, .. }) = &mut events[position] {
                    *id = Some(CowStr::from(anchor));
                }
            }
            Event::End(TagEnd::Heading(_)) => is_in_heading = false,
            Event::Text(text) | Event::Code(text) if !is_in_heading => {
                let section = sections.last_mut().expect("there is always a section");
                section.text.push_str(text);
                section.text.push(' ');
            }
            _ => {}
        }
    }
    let mut html = String::new();
    html::push_html(&mut html, events.into_iter().flat_map(adapted));
    for section in &mut sections {
        section.text = section.text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    sections.retain(|section| !section.heading.is_empty() || !section.text.is_empty());
    Body { html, sections }
}

/// Replaces links to sources, and puts tables into a box that scrolls on a narrow screen.
fn adapted(event: Event) -> Vec<Event> {
    match event {
        Event::Start(Tag::Link {
            link_type,
            dest_url,
            title,
            id,
        }) => vec![Event::Start(Tag::Link {
            link_type,
            dest_url: link_target(&dest_url).into(),
            title,
            id,
        })],
        Event::Start(tag @ Tag::Table(_)) => vec![Event::Html("<div class=\"table\">".into()), Event::Start(tag)],
        Event::End(TagEnd::Table) => vec![Event::End(TagEnd::Table), Event::Html("</div>".into())],
        other => vec![other],
    }
}

fn link_target(url: &str) -> String {
    let (path, anchor) = url.split_once('#').unwrap_or((url, ""));
    match path.strip_suffix(".md") {
        Some(page) if !path.contains("://") && anchor.is_empty() => format!("{page}.html"),
        Some(page) if !path.contains("://") => format!("{page}.html#{anchor}"),
        _ => url.to_owned(),
    }
}

fn heading_text(events: &[Event]) -> String {
    events
        .iter()
        .take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_))))
        .filter_map(|event| match event {
            Event::Text(text) | Event::Code(text) => Some(text.as_ref()),
            _ => None,
        })
        .collect()
}

/// Returns the anchor that mdBook gives to a heading. `used` counts the headings of a page with the same text.
fn anchor(heading: &str, used: &mut HashMap<String, usize>) -> String {
    let name: String = heading
        .chars()
        .filter_map(|c| match c {
            _ if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_ascii_lowercase()),
            _ if c.is_whitespace() => Some('-'),
            _ => None,
        })
        .collect();
    let count = used.entry(name.clone()).or_insert(0);
    let anchor = match *count {
        0 => name.clone(),
        repeated => format!("{name}-{repeated}"),
    };
    *count += 1;
    anchor
}

/// Returns a whole page: place of the contents, search field, body, links to the neighbours.
fn frame(page: &Page, body: &str, previous: Option<&Page>, next: Option<&Page>) -> String {
    let root = "../".repeat(page.source.matches('/').count());
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{} - tidewire</title><link rel=\"stylesheet\" href=\"{root}book.css\">\
         <script src=\"{root}book.js\" defer></script></head><body data-root=\"{root}\" data-page=\"{}\">\
         <a class=\"skip\" href=\"#page\">Skip to the page</a>\
         <header><a class=\"home\" href=\"{root}introduction.html\">tidewire</a>\
         <button id=\"menu\" aria-controls=\"contents\" aria-expanded=\"false\">Contents</button>\
         <div class=\"search\" role=\"search\"><input type=\"search\" id=\"search\" aria-label=\"Search the book\" \
         placeholder=\"Search\" autocomplete=\"off\"><ul id=\"found\" hidden></ul></div></header>\
         <nav id=\"contents\" aria-label=\"Contents\"><a href=\"{root}{CONTENTS_PAGE}\">Contents</a></nav>\
         <main id=\"page\">{body}<footer>",
        escaped(&page.title),
        page.target(),
    );
    for (relation, arrow, neighbour) in [("prev", "← ", previous), ("next", "→ ", next)] {
        if let Some(neighbour) = neighbour {
            let (target, title) = (neighbour.target(), escaped(&neighbour.title));
            write!(html, "<a rel=\"{relation}\" href=\"{root}{target}\">{arrow}{title}</a>")
                .expect("a String accepts all text");
        }
    }
    html.push_str("</footer></main></body></html>\n");
    html
}

/// Returns the page with links to all pages.
fn contents_page(contents: &[Entry]) -> String {
    let mut body = String::from("<h1>Contents</h1><div id=\"all-pages\">");
    for entry in contents {
        match entry {
            Entry::Part(title) => write!(body, "<h2>{}</h2>", escaped(title)),
            Entry::Page(page) => {
                let (depth, target, title) = (page.depth, page.target(), escaped(&page.title));
                write!(body, "<a class=\"depth-{depth}\" href=\"{target}\">{title}</a>")
            }
        }
        .expect("a String accepts all text");
    }
    body.push_str("</div>");
    let page = Page {
        title: "Contents".to_owned(),
        source: CONTENTS_PAGE.to_owned(),
        depth: 0,
    };
    frame(&page, &body, None, None)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

fn pictures() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for file in fs::read_dir(Path::new(DOCS).join("pictures"))? {
        found.push(file?.path());
    }
    Ok(found)
}

/// Writes each file compressed to `OUT_DIR`, and the table that embeds them.
fn embed(files: &[(String, Vec<u8>)]) -> Result<()> {
    let directory = PathBuf::from(env::var("OUT_DIR")?);
    let mut table = String::from("&[\n");
    for (path, content) in files {
        let content_type = match path.rsplit_once('.') {
            Some((_, "html")) => "text/html; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "json")) => "application/json",
            Some((_, "svg")) => "image/svg+xml",
            Some((_, "png")) => "image/png",
            _ => return Err(format!("{path}: unknown file type: add its content type to crates/book/build.rs").into()),
        };
        let stored = directory.join(format!("{}.gz", path.replace('/', "-")));
        let mut encoder = GzEncoder::new(fs::File::create(&stored)?, Compression::best());
        encoder.write_all(content)?;
        encoder.finish()?;
        writeln!(
            table,
            "BookFile {{ path: {path:?}, content_type: {content_type:?}, gzip: include_bytes!({stored:?}) }},"
        )?;
    }
    table.push_str("]\n");
    fs::write(directory.join("files.rs"), table)?;
    Ok(())
}
