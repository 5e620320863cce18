# Functions of jq that jq itself can say. Each may call those before it and what is native.
def map(f): [.[] | f];
def select(f): if f then . else empty end;
def recurse: recurse(.[]?);
def recurse(f; condition): recurse(f | select(condition));
def range($to): range(0; $to; 1);
def range($from; $to): range($from; $to; 1);
def values: select(. != null);
def nulls: select(. == null);
def booleans: select(type == "boolean");
def numbers: select(type == "number");
def strings: select(type == "string");
def arrays: select(type == "array");
def objects: select(type == "object");
def iterables: select(type | . == "array" or . == "object");
def scalars: select(type | . != "array" and . != "object");
def finites: select(isinfinite or isnan | not);
def normals: select(isnormal);
def isvalid(f): try (f | true) catch false;
def abs: if type == "number" and . < 0 then -. else . end;
def toarray: if type == "array" then . else [.] end;
def add(f): reduce f as $x (null; . + $x);
def isempty(g): label $go | (g | false, break $go), true;
def first(f): label $out | (f | ., break $out);
def first: .[0];
def last(f): reduce f as $x (null; $x);
def last: .[-1];
def skip($n; f): foreach f as $x ($n; . - 1; if . < 0 then $x else empty end);
def nth($n): .[$n];
def nth($n; f): if $n < 0 then error("Out of bounds negative array index") else first(skip($n; f)) end;
def any(generator; condition): isempty(first(generator | condition or empty)) | not;
def any(f): any(.[]; f);
def any: any(.);
def all(generator; condition): isempty(first(generator | condition and empty));
def all(f): isempty(first(.[] | if f then empty else . end));
def all: all(.);
def in(xs): . as $x | xs | has($x);
def inside(xs): . as $x | xs | contains($x);
def map_values(f): .[] |= f;
def del(f): delpaths([path(f)]);
def paths: path(..) | select(length > 0);
def paths(f): . as $all | paths | select(. as $p | $all | getpath($p) | f);
def leaf_paths: paths(scalars);
def pick(f): . as $all | reduce path(f) as $p (null; setpath($p; $all | getpath($p)));
def to_entries: [keys[] as $k | {key: $k, value: .[$k]}];
def _entry_key: if type == "object" then
    if has("key") then .key elif has("k") then .k elif has("name") then .name
    elif has("Name") then .Name elif has("Key") then .Key elif has("K") then .K else null end
  else . end | if type == "string" then . else tojson end;
def _entry_value: if has("value") then .value elif has("v") then .v elif has("Value") then .Value else .V end;
def from_entries: reduce .[] as $x ({}; . + {($x | _entry_key): ($x | _entry_value)});
def with_entries(f): to_entries | map(f) | from_entries;
def walk(f): def w: if type == "object" then map_values(w) elif type == "array" then map(w) else . end | f; w;
def sort_by(f): _sort_by(map([f]));
def group_by(f): _group_by(map([f]));
def unique_by(f): [group_by(f)[] | .[0]];
def min_by(f): _min_by(map([f]));
def max_by(f): _max_by(map([f]));
def flatten: flatten(1000);
def index($x): indices($x) | .[0];
def rindex($x): indices($x) | .[-1:][0];
def transpose: if . == [] then [] else . as $in | (map(length) | max) as $n | [range($n) as $j | [range($in | length) as $i | $in[$i][$j]]] end;
def combinations: if length == 0 then [] else .[0][] as $x | (.[1:] | combinations) as $rest | [$x] + $rest end;
def combinations($n): . as $in | [range($n)] | map($in) | combinations;
def ascii: [.] | implode;
def todate: strftime("%Y-%m-%dT%H:%M:%SZ");
def todateiso8601: todate;
def fromdate: fromdateiso8601;
def date: todate;
def dateadd(unit; $n): . + $n;
def datesub(unit; $n): . - $n;
def match($re; $flags): _match($re; $flags)[];
def match($re): match($re; null);
def test($re; $flags): _match($re; $flags) | length > 0;
def test($re): test($re; null);
def _named: [.captures[] | select(.name != null) | {key: .name, value: .string}] | from_entries;
def capture($re; $flags): match($re; $flags) | _named;
def capture($re): capture($re; null);
def scan($re; $flags): match($re; "g" + $flags) | if (.captures | length) > 0 then [.captures[].string] else .string end;
def scan($re): scan($re; null);
def split($re; $flags): . as $in
  | [foreach (match($re; "g" + $flags), null) as $m ({at: 0};
      if $m == null then .piece = $in[.at:] else .piece = $in[.at:$m.offset] | .at = $m.offset + $m.length end; .piece)];
def splits($re; $flags): split($re; $flags)[];
def splits($re): splits($re; null);
def sub($re; by; $flags): . as $in
  | reduce match($re; $flags) as $m ({at: 0, out: ""};
      .out = .out + $in[.at:$m.offset] + ($m | _named | by) | .at = $m.offset + $m.length)
  | .out + $in[.at:];
def sub($re; by): sub($re; by; null);
def gsub($re; by; $flags): sub($re; by; "g" + $flags);
def gsub($re; by): sub($re; by; "g");
def tostream: path(def r: (.[]? | r), .; r) as $p | getpath($p) | reduce path(.[]?) as $q ([$p, .]; [$p + $q]);
def fromstream(f): {x: null, e: false} as $init
  | foreach f as $i ($init;
      if .e then $init else . end
      | if $i | length == 2 then .e = ($i[0] | length == 0) | setpath(["x"] + $i[0]; $i[1])
        else .e = ($i[0] | length == 1) end;
      if .e then .x else empty end);
def truncate_stream(f): . as $n | null | f | . as $i | if (.[0] | length) > $n then setpath([0]; .[0][$n:]) else empty end;
def IN(f): any(. == f; .);
def IN(source; f): any(source == f; .);
def INDEX(stream; f): reduce stream as $row ({}; .[$row | f | tostring] = $row);
def INDEX(f): INDEX(.[]; f);
