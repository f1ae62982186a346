"""Word lists the dialogue generators draw from."""

from __future__ import annotations


def words_of(text: str) -> list[str]:
    return text.split()


CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Switzerland": "Bern", "Belgium": "Brussels", "Denmark": "Copenhagen",
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Iceland": "Reykjavik",
    "Ireland": "Dublin", "Poland": "Warsaw", "Hungary": "Budapest", "Greece": "Athens", "Turkey": "Ankara",
    "Russia": "Moscow", "Ukraine": "Kyiv", "Romania": "Bucharest", "Bulgaria": "Sofia", "Serbia": "Belgrade",
    "Croatia": "Zagreb", "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Thailand": "Bangkok",
    "Vietnam": "Hanoi", "Indonesia": "Jakarta", "South Korea": "Seoul", "Nepal": "Kathmandu",
    "Mongolia": "Ulaanbaatar", "Iran": "Tehran", "Iraq": "Baghdad", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Ghana": "Accra", "Nigeria": "Abuja", "Ethiopia": "Addis Ababa", "Morocco": "Rabat", "Algeria": "Algiers",
    "Senegal": "Dakar", "Canada": "Ottawa", "Mexico": "Mexico City", "Cuba": "Havana", "Peru": "Lima",
    "Chile": "Santiago", "Brazil": "Brasilia", "Argentina": "Buenos Aires", "Colombia": "Bogota",
    "Ecuador": "Quito", "Uruguay": "Montevideo", "Australia": "Canberra", "New Zealand": "Wellington",
    "the United States": "Washington", "the United Kingdom": "London", "the Netherlands": "Amsterdam",
}  # fmt: skip

NAMES = words_of(
    """
    Anna Ben Carla David Elena Felix Greta Hugo Ines Jonas Kira Leo Maria Nils Olga Paul Rosa Sven Tina
    Uma Viktor Wanda Yusuf Zoe Alice Bob Clara Daniel Emma Frank Grace Henry Isabel Jack Karen Laura Martin Nora
    Oscar Peter Quinn Rachel Simon Teresa Victor Walter Amir Bianca Chen Dalia Emil Fatima Goran Hana Ivan Jamal
    Kenji Lena Mehmet Nadia Omar Priya Ravi Sara Tomas Ursula Vera Wei Yara Adam Eva Lucas Mia Noah Sofia Tom Ken
    Lily Max Nina Otto Pia Ruth Sam Theo Zara
    """
)

CITIES = words_of(
    """
    Oslo Paris Berlin Rome Madrid Lisbon Vienna Bern Brussels Dublin Warsaw Prague Athens Cairo Lima
    Quito Tokyo Seoul Delhi Mumbai Boston Chicago Denver Dallas Miami Seattle Toronto Sydney Perth Munich Hamburg
    Milan Naples Porto Lyon Nice Geneva Zurich Bergen Turin Leeds York Bristol London Kyoto Osaka Hanoi Nairobi
    Accra Dakar Havana
    """
)

ITEMS = words_of(
    """
    lamp chair table book pencil bottle basket ladder carpet mirror clock kettle spoon jacket hat
    umbrella candle blanket drum violin wallet helmet bucket pillow teapot notebook camera guitar rope brush
    """
)

COLORS = words_of("red blue green yellow black white orange purple brown pink gray silver golden")
DAYS = words_of("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
EVENTS = words_of("meeting concert lecture dinner workshop party match exam interview tour picnic seminar")
PLACES = words_of("library office park museum school hall garden station theater cafe harbor market")
ANIMALS = words_of("cat dog horse rabbit goat sheep cow duck goose mouse fox bear wolf owl hawk frog snail whale")
ADJECTIVES = words_of(
    """
    small big old new quiet loud happy sad warm cold bright dark soft hard quick slow clean heavy light
    round flat sweet bitter gentle proud brave clever lazy
    """
)
VERBS = words_of(
    """
    sees finds likes carries follows paints watches hides moves opens holds sells cleans brings keeps wants
    lifts draws
    """
)
TOOL_VERBS = words_of("get set find list open close start stop read send make check book order play count")
TOOL_NOUNS = words_of(
    """
    weather time timer note light door song file mail room price route ticket photo task user alarm
    report list event
    """
)
KEYS = words_of("city name title color day item place count size user topic room text query level unit")
TOPICS = words_of(
    """
    the moon the sun music history physics football politics cooking philosophy space dinosaurs ships
    trains poetry chess medicine banks taxes gardening movies
    """
)

SYLLABLES = words_of(
    """
    ba be bi bo bu da de di do du fa fe fi ga go ka ke ki ko ku la le li lo lu ma me mi mo mu na ne ni
    no nu pa pe po ra re ri ro ru sa se si so ta te ti to tu va ve vi wa za zo ran len mar tol vin der sal kor
    """
)
